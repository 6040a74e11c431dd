"""The few storage verbs and their promises; one backend per file. `local` is the file system."""
