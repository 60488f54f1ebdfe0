"""Object stores: one client for the sealed segments of a log and for the tables of a warehouse in a bucket.

`bucket` makes the requests, and is the only module that imports the client library; `refusals` explains its errors. It
does not know what is in the objects.
"""
