"""What operators do and read: functions that return values and print nothing."""
