"""What `headrace doctor` looks at: what is installed, this machine, the job this process is of, places of data."""
