package server

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"kiln/server/settings"
	"kiln/server/store"
)

// problems are the faults of a configuration, a line each: key, value, and expected form.
type problems []error

func (p *problems) add(format string, args ...any) { *p = append(*p, fmt.Errorf(format, args...)) }

// join adds what another check has found; nil is nothing.
func (p *problems) join(err error) {
	if err != nil {
		*p = append(*p, err)
	}
}

// err is all problems, nil when there are none.
func (p problems) err() error { return errors.Join(p...) }

func (p *problems) oneOf(key, value string, allowed ...string) {
	if !slices.Contains(allowed, value) {
		p.add("%s is %q: expected %s", key, value, strings.Join(allowed, ", "))
	}
}

func (p *problems) atLeast(key string, value, least int64) {
	if value < least {
		p.add("%s is %d: expected %d or more", key, value, least)
	}
}

// baseURL accepts "" and absolute http and https URLs that paths can be added to.
func (p *problems) baseURL(key, value string) {
	if strings.ContainsAny(value, "?#") {
		p.add("%s is %q: expected a URL without a query and a fragment, as paths are added to it", key, settings.Redact(value))
		return
	}
	p.webURL(key, value)
}

// webURL accepts "" and absolute http and https URLs.
func (p *problems) webURL(key, value string) {
	if value == "" {
		return
	}
	if u, err := url.Parse(value); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		p.add("%s is %q: expected a URL that starts with http:// or https://", key, settings.Redact(value))
	}
}

// replicaURL accepts the address of one PostgreSQL.
func (p *problems) replicaURL(key, value string) {
	c, err := pgx.ParseConfig(value)
	scheme, _, isURL := strings.Cut(value, "://")
	switch {
	case value == "" || err != nil || isURL && scheme != "postgres" && scheme != "postgresql", !isURL && !strings.Contains(value, "="):
		p.add("%s is %q: expected a PostgreSQL URL such as postgres://user@host:5432/database", key, settings.Redact(value))
	case store.CountHosts(c) > 1:
		p.add("%s is %q: expected one host; each standby has an entry of its own", key, settings.Redact(value))
	}
}

// databaseURL accepts "" and what pgx connects by: a URL, or keywords and values.
func (p *problems) databaseURL(key, value string) {
	if value == "" {
		return
	}
	scheme, _, isURL := strings.Cut(value, "://")
	switch {
	case isURL && scheme != "postgres" && scheme != "postgresql", !isURL && !strings.Contains(value, "="):
		p.add("%s is %q: expected a URL that starts with postgres:// or postgresql://", key, settings.Redact(value))
	default:
		switch err := store.CheckHosts(value); {
		case errors.Is(err, store.ErrHosts):
			p.add("%s is %q: %v", key, settings.Redact(value), err)
		case err != nil:
			p.add("%s is %q: expected a PostgreSQL URL such as postgres://user@host:5432/database", key, settings.Redact(value))
		}
	}
}
