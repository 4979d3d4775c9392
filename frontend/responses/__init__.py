"""The Responses API: answers that are kept in JetStream."""
