# Short names for the scripts; CMakeLists.txt is the build.
.PHONY: demo setup test quick bench fuzz format install
demo setup test quick bench format:
	@scripts/$@ $(ARGS)
fuzz:
	@scripts/fuzz $(SECONDS)
install:
	@scripts/install $(PREFIX)
