"""The parts of the Spark event log reader: files, events, one application's log, its DAGs, durations, profiles."""
