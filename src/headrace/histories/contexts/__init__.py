"""Make token contexts from prepared histories. Users import `headrace.contexts`."""
