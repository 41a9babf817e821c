"""For the time being: csv_command_line."""
