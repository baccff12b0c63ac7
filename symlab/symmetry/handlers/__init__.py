"""What each operation of a traced network does to axes: one small function per kind of operation.

Every module of this folder is loaded by `table.lookup`, so a new file with registered functions is all a new
operation needs.
"""
