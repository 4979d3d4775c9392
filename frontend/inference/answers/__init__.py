"""This package looks after open answers: who reads them, when they end, and what their readers
leave behind."""
