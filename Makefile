# Short names for the scripts; CMakeLists.txt is the build.
# make sim SEEDS=N explores N schedules (tests/sim).
sim:
	@scripts/sim --seeds $(or $(SEEDS),2000)
# make crash CYCLES=N [SEED=S] [MODEL=FILE] kills a server N times under durable requests (tests/crash).
crash:
	@CYCLES=$(CYCLES) SEED=$(SEED) MODEL=$(MODEL) scripts/crash $(ARGS)
.PHONY: crash sim demo setup test quick bench fuzz format install
demo setup test quick bench format:
	@scripts/$@ $(ARGS)
fuzz:
	@scripts/fuzz $(SECONDS)
install:
	@scripts/install $(PREFIX)
