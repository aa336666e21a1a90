# Everything that one does with this tree. `make` alone prints what there is.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# Packages to test: make test PKG=./server/search
PKG ?= ./...
# Further flags of go test: make test TESTFLAGS='-race -run Transaction'
TESTFLAGS ?=
# Arguments of kiln serve: make run ARGS='--listen 127.0.0.1:9090'
ARGS ?=

TOOL := go tool -modfile=tools/tool.mod

help: ## print this help
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## compile bin/kiln
	go build -trimpath -ldflags=-s -o bin/kiln ./cmd

run: postgresql build ## build and serve on 127.0.0.1:8080; data in .kiln/
	bin/kiln serve $(ARGS)

demo: postgresql build ## serve a demo with authorization, made-up patients and a launch simulator; nothing is kept
	dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; bin/kiln serve --demo --data-dir "$$dir" $(ARGS)

test: postgresql ## run every test, on a PostgreSQL that is thrown away (or TEST_DATABASE_URL), and print the skipped ones
	@{ failed=0; \
	tools/with-postgresql go test -json -count=1 -timeout 40m -parallel 4 $(TESTFLAGS) $(PKG) || failed=1; \
	if [ "$(PKG)" = ./... ]; then (cd tools && go test -json -count=1 $(TESTFLAGS) ./...) || failed=1; fi; \
	exit $$failed; } | (cd tools && go run ./testsummary $(filter -v,$(TESTFLAGS)))

test-on: ## run every test on another PostgreSQL: make test-on PG=17
	@if [ -z "$(PG)" ]; then echo "say which one: make test-on PG=17"; exit 1; fi
	env -u TEST_DATABASE_URL PG=$(PG) tools/with-postgresql go test -count=1 -timeout 40m $(TESTFLAGS) $(PKG)

conformance: postgresql ## run the black-box tests of the running service
	tools/with-postgresql go test -count=1 -timeout 40m $(TESTFLAGS) ./server/conformance/...

generate: ## compile definitions/ and queries/ to gen/
	go generate ./codegen/...
	CGO_ENABLED=0 $(TOOL) sqlc generate -f queries/sqlc.yaml

verify: generate ## generate, and fail when gen/ was not what definitions/ and queries/ say
	@changed=$$(git status --porcelain -- gen); \
	if [ -n "$$changed" ]; then \
		echo "gen/ is not what make generate makes; commit the result with its cause:"; echo "$$changed"; exit 1; \
	fi

lint: ## gofmt, go vet, staticcheck
	@unformatted=$$(gofmt -l cmd codegen definitions gen oauth queries server tools); \
	if [ -n "$$unformatted" ]; then echo "not formatted:"; echo "$$unformatted"; exit 1; fi
	go vet ./...
	cd tools && go vet ./...
	$(TOOL) staticcheck ./...

bench: postgresql build ## measure a server of this tree beside the floor of PostgreSQL
	cd tools && go run ./bench $(ARGS)

db: postgresql ## open psql on the database that make run keeps in .kiln/
	tools/psql $(ARGS)

postgresql: ## install PostgreSQL where it is missing (Debian, as root), or say how
	@tools/install-postgresql

.PHONY: help build run demo test test-on conformance generate verify lint bench db postgresql
