"""What a monitoring system gets from a cluster: metrics, rules, scrape targets, a dashboard. Pure."""
