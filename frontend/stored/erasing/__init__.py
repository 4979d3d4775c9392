"""This package erases what is stored of requests and of tenants."""
