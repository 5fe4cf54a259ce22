# Everything here needs Go and make, nothing else. `make` alone lists the targets.

GOLANGCI := go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

COUNT    ?= 5
PKG      ?= ./...
FUZZTIME ?= 30s

.DEFAULT_GOAL := help
.PHONY: help dev test e2e stress fuzz bench lint fmt

help: ## List the targets
	@while IFS= read -r line; do \
		case $$line in [a-z]*:*' ## '*) printf '  make %-8s %s\n' "$${line%%:*}" "$${line#* ## }" ;; esac; \
	done < $(firstword $(MAKEFILE_LIST))

dev: ## Run a broker with heartbeats of this machine flowing through it
	go run ./cmd/jetbus dev

test: ## Vet and test both modules under the race detector
	go vet ./...
	go test -race -shuffle=on ./...
	cd e2e && go vet ./...
	cd e2e && go test -race ./...

e2e: ## Test the e2e module alone, test by test
	cd e2e && go test -race -v ./...

stress: ## Test PKG=./... COUNT=5 times under the race detector
	go test -race -shuffle=on -count=$(COUNT) $(PKG)

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

bench: ## Compare with raw nats.go and peers; JSON=file writes the table, QUICK=1 is a smoke run
	cd e2e && go run ./bench$(if $(JSON), -json '$(abspath $(JSON))')$(if $(QUICK), -quick)

lint: ## Check both modules: linters, format, import groups
	$(GOLANGCI) run ./...
	cd e2e && $(GOLANGCI) run ./...

fmt: ## Format both modules
	$(GOLANGCI) fmt
