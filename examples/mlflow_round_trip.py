"""For the time being: mlflow_round_trip."""
