"""What is asked: jobs as frozen data, their readers, and when they arrive."""
