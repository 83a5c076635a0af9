"""OpenAI's two chat APIs as data: requests read strictly, answers written."""
