"""Jobs from data to a result: each is a `run(config) -> Result` that can be killed and then continued."""
