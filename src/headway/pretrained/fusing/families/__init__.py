"""One file for each way in which models compute their position bias."""
