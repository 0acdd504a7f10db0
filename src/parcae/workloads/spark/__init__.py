"""Parts of the Spark event log reader: files, events, applications, DAGs, durations, profiles."""
