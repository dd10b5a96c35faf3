__commit_id__ = "gstub"
