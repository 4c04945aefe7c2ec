"""Reports: where the time goes, as a record, a table, a picture and a trace file."""
