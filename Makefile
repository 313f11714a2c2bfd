# The front door: each target is one line over `python3 -m harness VERB`, and makes .venv first if need be.
# A new verb is one line here: its prerequisite, a ## comment for `make help`, and $(call run,harness VERB WORDS).

VARIABLES := PROBLEM NAME SUBMISSION DEVICE TARGET RUN A B ARGS PYTHON

MAKEFLAGS += --no-builtin-rules --no-print-directory
.DEFAULT_GOAL := help
.SUFFIXES:

PYTHON ?= python3
PY      := .venv/bin/python
READY   := .venv/.podium-ready
DEV     := .venv/.podium-ready-dev
OFFLINE := .venv/.podium-ready-offline
SERVER  := .venv/.podium-ready-server

# Values reach the shell as environment variables and never as text of a command: nothing in them is expanded by make
# or executed by the shell. SUBMISSION is split at spaces, and a * in it is expanded. ARGS is split as a shell would
# split it, quotes included.
asked_python := $(filter command environment,$(origin PYTHON))
asked_name   := $(filter command,$(origin NAME))
$(foreach name,$(VARIABLES),$(eval override $(name) := $$(value $(name))))
export $(VARIABLES)
unexport MAKEFLAGS MFLAGS VIRTUAL_ENV PYTHONHOME

define split
import shlex, sys
try:
    print(shlex.join(shlex.split(sys.argv[1])))
except ValueError as error:
    sys.exit(f"podium: ARGS={sys.argv[1]}: {error}")
endef
export split
words = words=$$($(PY) -Ic "$$split" "$$ARGS") || exit; eval "set -- $$words";
run   = @$(if $(ARGS),$(words)) exec $(if $(filter harness,$(firstword $(1))),env PODIUM_CALLER=make )$(PY) -m $(1) "$$@"
device = $${DEVICE:+--device "$$DEVICE"}
target = $${TARGET:+--target "$$TARGET"}

## Judge

new: $(READY)          ## write submissions/PROBLEM/NAME.py from the template
	$(call run,harness new "$$PROBLEM" "$$NAME")

new-problem: $(READY)  ## write problems/NAME, a small problem that passes verify
	$(call run,harness new-problem "$$NAME")

eval: $(READY)         ## judge SUBMISSION="FILE ..." of PROBLEM (default: all without a verdict) [on DEVICE]; ARGS=--watch: at each save
	$(call run,harness eval "$$PROBLEM" $$SUBMISSION $(device))

check: $(READY)        ## judge SUBMISSION of PROBLEM on small cases and compile it for TARGET (default: all four); needs no GPU
	$(call run,harness check "$$PROBLEM" $$SUBMISSION $(target))

verify: $(READY)       ## check that every control of PROBLEM (default: of all problems) gets its verdict
	$(call run,harness verify $${PROBLEM:+"$$PROBLEM"} $(device))

repro: $(READY)        ## judge a stored RUN again with its source, cases, sampling and seeds, and compare
	$(call run,harness repro "$$RUN" $(device))

## Look

leaderboard: $(READY)  ## the boards of PROBLEM
	$(call run,harness leaderboard "$$PROBLEM" $(device))

show: $(READY)         ## one RUN in full
	$(call run,harness show "$$RUN")

compare: $(READY)      ## compare run B with run A: sources, latencies, which is faster; ARGS=--duel times both again in turns
	$(call run,harness compare "$$A" "$$B" $(device))

report: $(READY)       ## all boards, or those of PROBLEM, with charts, samples and sources in one page: board.html
	$(call run,harness report $${PROBLEM:+"$$PROBLEM"} $(device))

profile: $(READY)      ## where the time of SUBMISSION of PROBLEM goes, by ncu, rocprofv3 or torch.profiler; ARGS="--case 2"
	$(call run,harness profile "$$PROBLEM" $$SUBMISSION $(device))

problems: $(READY)     ## list the problems
	$(call run,harness problems)

## Set up

doctor: $(READY)       ## what this machine can do and what it lacks; ARGS=--calibrate measures its noise
	$(call run,harness doctor $(device))

setup-offline: $(OFFLINE)  ## add compilers for inline HIP and CUDA, as far as pip has them, and the emulator's tables
	@echo 'podium: the compilers for inline HIP and CUDA that pip has, and what the emulator needs, are installed'

## Compete with others

serve: $(SERVER)       ## serve the competitions of configs/competitions and judge what is submitted; ARGS="--port 8000"
	$(call run,harness serve)

## Work on Podium itself

test: $(DEV)           ## the tests but the slow ones, which it names, a file a processor
	$(call run,pytest -q --numprocesses=auto --dist=loadfile -m "not slow")

test-all: $(DEV)       ## all tests
	$(call run,pytest -q --numprocesses=auto --dist=loadfile)

test-triton: $(DEV)    ## the interpreter's tests with each Triton version that is supported
	$(call run,tests.triton_versions)

bench-gpu: $(READY)    ## on a GPU: the experiments of docs/experiments.md and every problem, in 13 minutes
	$(call run,bench.gpu $(device))

lint: $(DEV)           ## ruff and mypy
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy harness reference

clean:                 ## remove .venv and all caches; results stay
	@rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find harness reference problems submissions tests -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || :

help:                  ## this list
	@echo 'make TARGET [VARIABLE=value ...]    ARGS="..." is handed on, as in: make test ARGS="-k floor"'
	@sed -n -e 's/^## \(.*\)/\n\1/p' -e 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' Makefile | expand -t 16

verbs := new new-problem eval check verify repro leaderboard show compare report profile problems doctor setup-offline serve test test-all test-triton bench-gpu lint clean help
.PHONY: $(verbs) again

# .venv. Made again when what it was made from changed, when another PYTHON is named, or when it no longer runs.

$(READY) $(DEV) $(OFFLINE) $(SERVER): pyproject.toml constraints.txt $(if $(asked_python),again,$(shell test -x $(PY) || echo again))
	@command -v "$$PYTHON" >/dev/null || { echo "podium: there is no $$PYTHON here: install Python 3.11 or newer \
	(Debian and Ubuntu: apt install python3 python3-venv) or name one: PYTHON=/path/to/python3" >&2; exit 30; }
	@exec "$$PYTHON" -I harness/bootstrap install $(if $(filter $(DEV),$@),--dev)$(if $(filter $(OFFLINE),$@),--offline)$(if $(filter $(SERVER),$@),--server)
again:

# A slip of the fingers is refused by name before anything is done.

typed   := $(foreach name,$(.VARIABLES),$(if $(filter command,$(firstword $(origin $(name)))),$(name)))
unknown := $(firstword $(filter-out $(VARIABLES) -*-command-variables-*-,$(typed)))
$(if $(unknown),$(error unknown variable $(unknown): there are $(VARIABLES). ARGS takes options: ARGS='--case 1'))

mistyped := $(firstword $(filter-out $(verbs) $(READY) $(DEV) $(OFFLINE) $(SERVER),$(MAKECMDGOALS)))
$(if $(mistyped),$(error unknown target $(mistyped): see make help))

# What is missing is no slip where only help is asked for: make check ARGS=--help.
goals := $(if $(filter -h --help,$(ARGS)),,$(MAKECMDGOALS))
known_problems = $(or $(notdir $(patsubst %/problem.yml,%,$(wildcard problems/*/problem.yml))),none yet)
$(foreach goal,$(filter new eval check leaderboard profile,$(goals)),$(if $(strip $(PROBLEM)),,\
	$(error say which problem: make $(goal) PROBLEM=mla; problems are: $(known_problems))))
$(foreach goal,$(filter check profile,$(goals)),$(if $(strip $(SUBMISSION)),,\
	$(error say which file: make $(goal) PROBLEM=$(PROBLEM) SUBMISSION=submissions/$(PROBLEM)/mine.py)))
$(foreach goal,$(filter show repro,$(goals)),$(if $(strip $(RUN)),,\
	$(error say which run: make $(goal) RUN=<run or submission>)))
$(foreach goal,$(filter compare,$(goals)),$(if $(and $(strip $(A)),$(strip $(B))),,\
	$(error say which runs: make compare A=<run or submission> B=<run or submission>)))
# Asked for on the command line: some systems set NAME in the environment.
$(foreach goal,$(filter new,$(goals)),$(if $(and $(asked_name),$(strip $(NAME))),,\
	$(error say what to call it: make new PROBLEM=mla NAME=mine)))
$(foreach goal,$(filter new-problem,$(goals)),$(if $(and $(asked_name),$(strip $(NAME))),,\
	$(error say what to call it: make new-problem NAME=sliding_window)))
