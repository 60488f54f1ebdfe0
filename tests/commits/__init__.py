"""The form of commit messages: a short subject in plain English, and a body that says why."""
