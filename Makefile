# Everything here needs Go and make, nothing else. `make` alone lists the targets.

GOLANGCI := go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

ATTACK   ?= 20s
CHAOS    ?= 10m
COUNT    ?= 5
DAYS     ?= 30
DIR      ?= .
FUZZTIME ?= 30s
INSTANCES ?= 2000
KILLS    ?= 100
MONGO_PORT ?= 27017
N        ?= 10000
NATS_PORT ?= 4222
NOISE    ?=
PAIRS    ?= 50000
PKG      ?= ./...
RERUN    ?= 0
ROUNDS   ?= 20
RUN      ?= .
RUNS     ?= 1
SEED     ?= $(shell date +%s)
SEEDS    ?= 2000
RESTORES ?= 200
SIM      ?= 200x1024
SUITE    ?= test
TIMES    ?= 8

.DEFAULT_GOAL := help
.PHONY: help dev test e2e e2e-real e2e-sql e2e-web stress trials chaos chaos-feed chaos-partitions chaos-buckets chaos-elections contract-elections kills restores attacks order model month soak prop million partitions-sim fuzz contract fuzz-schema mongo-conformance bench lint fmt

help: ## List the targets
	@while IFS= read -r line; do \
		case $$line in [a-z]*:*' ## '*) printf '  make %-17s %s\n' "$${line%%:*}" "$${line#* ## }" ;; esac; \
	done < $(firstword $(MAKEFILE_LIST))

dev: ## Run a broker with heartbeats of this machine flowing through it
	go run ./cmd/jetbus dev

# The suites do not depend on each other: test is what needs no real clock, e2e what does.
# RERUN=2 runs a test that failed up to twice again, and names it as FLAKY if it passes then.
export RERUN

# A bubble of fake time runs on one processor, and what runs outside of one waits a good deal:
# one package more than there are processors keeps them busy.
test: ## Vet and test what needs no real clock, under the race detector; RERUN=2 repeats failures
	go vet ./...
	@.ci/suite . -shuffle=on -timeout 10m -p $$(( $$(getconf _NPROCESSORS_ONLN) + 1 ))

# What it tests waits for processes, elections and leases most of the time.
e2e: ## Vet and test the module e2e: processes, clusters, cuts, other people's libraries
	cd e2e && go vet -tags elections,web ./...
	@.ci/suite e2e -count=1 -timeout 10m -p $$(( 2 * $$(getconf _NPROCESSORS_ONLN) ))

stress: ## Test PKG=./... matching RUN=. COUNT=5 times (DIR=e2e: of that module); NOISE=1 beside two busy loops
	@$(if $(NOISE),.ci/noise) .ci/stress $(DIR) $(COUNT) -run '$(RUN)' $(PKG)

e2e-real: export NATS_PORT := $(NATS_PORT)
e2e-real: export MONGO_PORT := $(MONGO_PORT)
e2e-real: export NATS_URL := nats://127.0.0.1:$(NATS_PORT)
e2e-real: export MONGODB_URI := mongodb://127.0.0.1:$(MONGO_PORT)/?replicaSet=rs0
e2e-real: ## Start a real NATS and a real MongoDB with Docker, and run the tests that take them
	@trap 'docker compose down --volumes' EXIT; set -ex; \
	docker compose up --detach --wait; \
	(cd e2e && go test -race -count=1 -v ./mongotest); \
	go test -race -count=1 ./projector/...; \
	go test -race -count=1 -timeout 40m ./changefeed/...; \
	go test -race -count=1 -run 'Project|Mongo' ./cmd/jetbus; \
	go run ./cmd/jetbus topics create e2e.real --key-in-subject; \
	go run ./cmd/jetbus pub e2e.real '{"total":120}' --key 7; \
	go run ./cmd/jetbus project e2e.real --for 2s; \
	go run ./cmd/jetbus project ls

e2e-sql: ## Test the outbox with KILLS=100 on SQLite, MongoDB (MONGODB_URI or the stand-in) and PostgreSQL (POSTGRES_URI or its programs)
	cd e2e && go test -race -count=1 -timeout 90m -v ./outbox -postgres -kills $(KILLS)

e2e-web: ## Test the gateway's ES module in Node and in headless Chromium; first npm ci in gateway/web
	cd e2e && go test -race -tags web -count=1 -timeout 45m -v ./web

trials: ## Make SUITE=test TIMES=8 times, a line each; NOISE=1 beside two busy loops
	@$(if $(NOISE),.ci/noise) .ci/trials $(SUITE) $(TIMES)

chaos: ## Kill, freeze and cut off brokers and members under load for CHAOS=10m, and account for every event
	cd e2e && go test ./faults -run '^TestChaos$$' -count=1 -timeout 0 -v -chaos $(CHAOS)

chaos-feed: ## Kill, freeze and cut off change feeds, their broker and their MongoDB for CHAOS=10m; the topic must be the history
	cd e2e && go test ./changefeed -run '^TestChaos$$' -count=1 -timeout 0 -v -chaos $(CHAOS)

chaos-partitions: ## Kill, add, stop and freeze members of a partitioned group under load while the topic grows, for CHAOS=10m, RUNS=1 times; nothing is lost, skipped or overlaps
	cd e2e && go test ./partitions -run '^TestChaos$$' -count=$(RUNS) -timeout 0 -v -chaos $(CHAOS)

chaos-buckets: ## Purge, delete and fill the buckets of locks and groups, for CHAOS=10m on a server and as long on a cluster; fails if a lock has two holders outside the documented gap, or if an epoch does not ascend
	cd e2e && go test ./partitions -run '^TestBucketChaos$$' -count=$(RUNS) -timeout 0 -v -chaos $(CHAOS)
	cd e2e && go test ./partitions -run '^TestBucketChaos$$' -count=$(RUNS) -timeout 0 -v -chaos $(CHAOS) -cluster

contract-elections: ## Play the contract on a cluster that elects all the time, RUNS=1 times
	cd e2e && go test ./contract -tags elections -run '^TestContractInElections$$' -count=$(RUNS) -timeout 0 -parallel 8 -v

chaos-elections: ## Have a random leader of a cluster step down each 300 ms, and kill a node 3 s and twice what its restart took after the one before, for CHAOS=10m; nothing is lost, stored twice or in two handlers at once
	cd e2e && go test ./cluster -run '^TestElections$$' -count=1 -timeout 0 -v -elections $(CHAOS)

kills: ## Kill a projector KILLS=100 times under load, and rebuilds; the collection must be exact
	cd e2e && go test ./projections -run '^Test(Projector|Rebuild)Killed$$' -count=1 -timeout 0 -v -kills $(KILLS)

restores: ## Restore a broker RESTORES=200 times under projections and readers, and as often under change feeds; each reports or repairs the loss
	cd e2e && go test ./restore -run '^Test(Feed)?Restore$$' -count=1 -timeout 0 -v -restores $(RESTORES)

attacks: ## Play the attacks on a gateway for ATTACK=20s each and all at once; memory, connects and a bystander's publishes stay within their bounds
	cd e2e && go test ./edge -run '^TestAttacks$$' -count=1 -timeout 0 -v -attack $(ATTACK) -alone

order: ## Stop and kill the active member of an ordered group in 100,000 events, of whose runs a fifth fail; each key's are in order
	cd e2e && go test ./jobs -run '^TestOrderPerKey$$' -count=1 -timeout 0 -v -each 100

model: ## Compare the bus with its model on N=10000 scripts, drawn from SEED
	go test -v -timeout 0 -run '^TestModelIn' ./embedded/bustest -rapid.checks=$$(( $(N) / 2 )) -rapid.seed=$(SEED)

month: ## Leave state alone for DAYS=30 days of fake time: it is all there
	go test -timeout 0 -count=1 -run '^TestStateStays$$' ./embedded/bustest -days $(DAYS)

soak: ## Play ROUNDS=20 times as many random lives of locks, partitioned groups and readers of the gateway as make test
	go test -race -timeout 0 -count=1 -run '^TestLockChaos$$' . -locks $$(( $(ROUNDS) * 20 ))m
	go test -race -timeout 0 -count=1 -run '^Test(Churn|Chaos|ChaosOnABroker)$$' ./partition -churns $$(( $(ROUNDS) * 30 ))
	go test -race -timeout 0 -count=1 -run '^TestSharedEnd$$' ./gateway -ends $$(( $(ROUNDS) * 6 ))

prop: ## Play SEEDS=2000 scenes of projections into MongoDB; each ends with the fold of its topic
	go test -v -timeout 0 -count=1 -run '^TestProperty$$' ./projector/mongosink -seeds $(SEEDS)

million: ## Rebuild a collection from 1,000,000 events: the time and the memory it takes
	go test -v -timeout 0 -count=1 -run '^TestRebuildMillion$$' ./projector/mongosink -million

partitions-sim: ## Play a group of SIM=200x1024 members and partitions in fake time: what it costs
	go test -v -timeout 0 -count=1 -run '^TestSimulation$$' ./partition -simulate $(SIM)

fuzz: ## Run every fuzz target for FUZZTIME=30s
	@set -ef; pkgs=$$(go list ./...); \
	for pkg in $$pkgs; do \
		names=$$(go test -list '^Fuzz' "$$pkg"); \
		for name in $$names; do \
			case $$name in Fuzz*) ;; *) continue ;; esac; \
			echo "go test -run '^$$' -fuzz '^$$name\$$' -fuzztime $(FUZZTIME) $$pkg"; \
			go test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) "$$pkg"; \
		done; \
	done

contract: ## Run the contract suite whole: in its long form, in memory too, around each decorator and not only around all of them, and over the gateway's client
	go test -race -timeout 60m -run '^TestContractIn' ./adapter/contract -whole
	go test -race -timeout 60m -run '^TestContract$$' ./registry -each
	go test -race -timeout 60m -run '^TestContractInBubble$$' ./gateway/client -whole

fuzz-schema: ## Look for a wrong proof in PAIRS=50000 pairs of schemas, attacked by INSTANCES=2000 values each, drawn from SEED
	go test -timeout 0 -count=1 -run '^TestChanges$$' ./registry/schema -instances $(INSTANCES)
	go test -v -timeout 0 -count=1 -run '^(TestStrictIsTransitive|TestSoundness)$$' ./registry/schema -pairs $(PAIRS) -instances $(INSTANCES) -pairseed $(SEED)

mongo-conformance: ## Run the official MongoDB driver's own suites against the stand-in
	go test -race -tags conformance -run '^TestConformance$$' -count=1 -timeout 60m -v ./embedded/mongod

bench: ## Compare with raw nats.go and peers; JSON=file writes the table, QUICK=1 is a smoke run
	cd e2e && go run ./bench$(if $(JSON), -json '$(abspath $(JSON))')$(if $(QUICK), -quick)

lint: ## Check both modules: linters, format, import groups, and their use of the bus
	@echo 'On a machine that has not run it before, golangci-lint is compiled first: that takes minutes.'
	$(GOLANGCI) run ./...
	cd e2e && $(GOLANGCI) run ./...
	go run ./cmd/topiclint ./...
	go run ./cmd/topiclint -C e2e ./...

fmt: ## Format both modules
	$(GOLANGCI) fmt
