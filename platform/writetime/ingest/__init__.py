"""HTTP events -> Kafka -> the table `user_events`: nothing lost, nothing twice."""
