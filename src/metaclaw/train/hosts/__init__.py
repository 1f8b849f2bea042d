"""Who serves trained weights beside the embedded engine: vLLM and SGLang by run-time loading, and a training service itself."""
