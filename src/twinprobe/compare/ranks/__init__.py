"""Many ranks: spread over an engine, resumed, looked at as a whole."""
