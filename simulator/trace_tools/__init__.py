"""What `kvcast trace` does to files of recorded requests: statistics of one, and new files made of them.

Everything works on `simulator.workload.records`, one record at a time, so the format of a file never matters here.
"""
