package server

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"kiln/oauth"
	"kiln/server/access"
)

// Config is everything that can be set. The tags are the keys of kiln.yaml; a
// field tagged secret is masked wherever the configuration is shown.
type Config struct {
	Server      ServerConfig      `koanf:"server"`
	Database    DatabaseConfig    `koanf:"database" restart:""`
	FHIR        FHIRConfig        `koanf:"fhir"`
	Search      SearchConfig      `koanf:"search"`
	Validation  ValidationConfig  `koanf:"validation"`
	Terminology TerminologyConfig `koanf:"terminology"`
	Auth        AuthConfig        `koanf:"auth"`
	Audit       AuditConfig       `koanf:"audit"`
	Apps        AppsConfig        `koanf:"apps"`
	Log         LogConfig         `koanf:"log"`
	Telemetry   TelemetryConfig   `koanf:"telemetry"`

	Notifications NotificationsConfig `koanf:"notifications"`
	Jobs          JobsConfig          `koanf:"jobs"`
	Bulk          BulkConfig          `koanf:"bulk"`
	Views         ViewsConfig         `koanf:"views"`
	Console       ConsoleConfig       `koanf:"console"`
}

// ServerConfig is about HTTP.
type ServerConfig struct {
	Listen         string   `koanf:"listen" restart:"" doc:"address and port to listen on"`
	MetricsListen  string   `koanf:"metrics_listen" doc:"address and port of a second listener that serves /metrics and /health* only; empty opens none"`
	BaseURL        string   `koanf:"base_url" restart:"" doc:"base of all links; empty builds them from the request"`
	TrustedProxies []string `koanf:"trusted_proxies" doc:"addresses or networks whose X-Forwarded-* headers are believed"`
	MaxBodyBytes   int64    `koanf:"max_body_bytes" doc:"largest request body, unpacked"`
	AllowedOrigins []string `koanf:"allowed_origins" doc:"origins that browsers may call from; * is every one, none turns CORS off"`
	DrainSeconds   int      `koanf:"drain_seconds" doc:"time that running requests have at shutdown"`
	DrainDelay     int      `koanf:"drain_delay_seconds" doc:"time that a stopping server goes on serving after it has become not ready, so that load balancers send requests elsewhere"`
	Pprof          bool     `koanf:"pprof" doc:"serve /debug/pprof to loopback clients"`
	MaxConnections int      `koanf:"max_connections" doc:"connections of clients at the same time, streams included; others wait"`

	Instantiates []string `koanf:"instantiates" doc:"canonicals of CapabilityStatement.instantiates; empty names the requirements of the packages that the server is built with or that are installed"`

	TLS TLSConfig `koanf:"tls"`
}

// DatabaseConfig is about PostgreSQL.
type DatabaseConfig struct {
	URL            string `koanf:"url" secret:"url" file:"" doc:"PostgreSQL to use; empty starts a private one in data_dir"`
	DataDir        string `koanf:"data_dir" file:"" doc:"folder of the private PostgreSQL"`
	MaxConnections int    `koanf:"max_connections" doc:"connections of this server; 0 is 4 for each CPU, at least 8"`
	TimeoutSeconds int    `koanf:"timeout_seconds" doc:"longest that a request waits for a database that does not answer"`
	WaitSeconds    int    `koanf:"wait_seconds" file:"" doc:"longest that a start waits for a database that is not up yet"`

	ReadURLs                  []string `koanf:"read_urls" secret:"url" restart:"" doc:"standbys that serve reads, one PostgreSQL each; list every member, the present primary too"`
	ReadWaitMS                int      `koanf:"read_wait_ms" restart:"" doc:"longest that a read waits until a standby has its position, in milliseconds; then the primary answers"`
	ReadMaxLagSeconds         int      `koanf:"read_max_lag_seconds" restart:"" doc:"a standby that is further behind serves nobody"`
	ReadMaxConnections        int      `koanf:"read_max_connections" restart:"" doc:"connections to each standby; 0 is as database.max_connections"`
	ReadWithoutPrimarySeconds int      `koanf:"read_without_primary_seconds" restart:"" doc:"how long standbys serve reads while there is no primary; 0 is not at all"`
}

// FHIRConfig is about the interactions.
type FHIRConfig struct {
	Version              string `koanf:"version" restart:"" doc:"FHIR version served: R4 or 4.0.1"`
	UpdateCreate         bool   `koanf:"update_create" doc:"PUT to an unknown id creates the resource"`
	SystemHistory        bool   `koanf:"system_history" doc:"serve the history of everything at /_history"`
	HistoryRetentionDays int    `koanf:"history_retention_days" doc:"days after which a job removes versions that another one has superseded; 0 keeps them for ever; the current version always stays"`
	// R4 asks for 412 where If-Match fails, the contract for 409.
	VersionConflictStatus int `koanf:"version_conflict_status" doc:"HTTP status of a version conflict: 409 or 412"`
}

// SearchConfig is about search.
type SearchConfig struct {
	DefaultCount   int  `koanf:"default_count" doc:"matches on a page without _count"`
	MaxCount       int  `koanf:"max_count" doc:"largest page; a larger _count is clamped"`
	TimeoutSeconds int  `koanf:"timeout_seconds" doc:"time after which a search is given up"`
	StoredMinutes  int  `koanf:"stored_minutes" doc:"how long the links of a search with long parameters work after their last use"`
	Explain        bool `koanf:"explain" doc:"allow _explain=true"`
	MemoryMB       int  `koanf:"memory_mb" doc:"memory of the search cache; 0 turns it off"`
}

// ValidationConfig are the checks before a resource is stored.
type ValidationConfig struct {
	Mode            string `koanf:"mode" doc:"full; structure or off: only the rules of FHIR JSON itself"`
	AllowSkip       bool   `koanf:"allow_skip" doc:"X-Skip-Validation: true skips validation"`
	CheckReferences bool   `koanf:"check_references" doc:"a literal reference to this server must have a target"`
}

// TerminologyConfig is about value sets and code systems.
type TerminologyConfig struct {
	Enabled        bool   `koanf:"enabled" doc:"answer terminology operations and :in, :not-in, :below, :above; without server_url from local definitions only"`
	External       bool   `koanf:"external" doc:"ask the server of server_url"`
	ServerURL      string `koanf:"server_url" secret:"url" doc:"FHIR base of a terminology server for code systems and value sets that are not known here; empty: none"`
	CacheTTLSecs   int    `koanf:"cache_ttl_secs" doc:"how long an answer of that server is good"`
	TimeoutSeconds int    `koanf:"timeout_seconds" doc:"how long one request to it may take"`
	Token          string `koanf:"token" secret:"yes" doc:"bearer token for it"`
	Username       string `koanf:"username" doc:"user for it, by Basic authentication, where there is no token"`
	Password       string `koanf:"password" secret:"yes" doc:"password of that user"`
}

// LogConfig is about the log, which goes to standard error.
type LogConfig struct {
	Level  string `koanf:"level" doc:"debug, info, warn or error"`
	Format string `koanf:"format" doc:"text or json"`
	Access string `koanf:"access" doc:"requests to log: all, errors (failed or slower than a second) or off"`

	SlowSearchMS int `koanf:"slow_search_ms" doc:"searches that take longer are logged with their shape, without values; 0 logs none"`
}

// Default is the configuration of a server that nothing was configured for.
func Default() Config {
	return Config{
		Server:      ServerConfig{Listen: "127.0.0.1:8080", MaxBodyBytes: 64 << 20, AllowedOrigins: []string{"*"}, DrainSeconds: 20, MaxConnections: 20000},
		Database:    DatabaseConfig{DataDir: ".kiln", TimeoutSeconds: 10, WaitSeconds: 60, ReadURLs: []string{}, ReadWaitMS: 50, ReadMaxLagSeconds: 10, ReadWithoutPrimarySeconds: 30},
		FHIR:        FHIRConfig{Version: "R4", UpdateCreate: true, SystemHistory: true, VersionConflictStatus: 409},
		Search:      SearchConfig{DefaultCount: 20, MaxCount: 1000, TimeoutSeconds: 30, StoredMinutes: 60, MemoryMB: 256},
		Validation:  ValidationConfig{Mode: "full"},
		Terminology: TerminologyConfig{Enabled: true, External: true, CacheTTLSecs: 3600, TimeoutSeconds: 10},
		Auth:        oauth.DefaultConfig(),
		Apps:        defaultApps,
		Telemetry:   TelemetryConfig{SampleRatio: 1},
		Log:         LogConfig{Level: "info", Format: "text", Access: "errors", SlowSearchMS: 1000},

		Notifications: defaultNotifications(),
		Jobs:          defaultJobs,
		Bulk:          defaultBulk,
		Views:         defaultViews,
		Console:       defaultConsole,
	}
}

// Check refuses values that no server can run with. The error has a line for each wrong
// key, with its value and the expected form.
func (c Config) Check() error {
	var p problems
	p.oneOf("log.level", c.Log.Level, "debug", "info", "warn", "error")
	p.oneOf("log.format", c.Log.Format, "text", "json")
	p.oneOf("log.access", c.Log.Access, "all", "errors", "off")
	p.oneOf("validation.mode", c.Validation.Mode, "off", "structure", "full")
	p.oneOf("fhir.version", c.FHIR.Version, "R4", "4.0", "4.0.1")
	if s := c.FHIR.VersionConflictStatus; s != 409 && s != 412 {
		p.add("fhir.version_conflict_status is %d: expected 409 or 412", s)
	}
	if d := c.FHIR.HistoryRetentionDays; d < 0 || d > mostDays {
		p.add("fhir.history_retention_days is %d: expected 0 to %d", d, mostDays)
	}
	p.atLeast("server.max_body_bytes", c.Server.MaxBodyBytes, 1024)
	p.atLeast("server.max_connections", int64(c.Server.MaxConnections), 1)
	p.atLeast("server.drain_seconds", int64(c.Server.DrainSeconds), 0)
	p.atLeast("server.drain_delay_seconds", int64(c.Server.DrainDelay), 0)
	p.atLeast("database.timeout_seconds", int64(c.Database.TimeoutSeconds), 1)
	p.atLeast("database.wait_seconds", int64(c.Database.WaitSeconds), 0)
	p.atLeast("database.max_connections", int64(c.Database.MaxConnections), 0)
	p.atLeast("database.read_wait_ms", int64(c.Database.ReadWaitMS), 0)
	p.atLeast("database.read_max_lag_seconds", int64(c.Database.ReadMaxLagSeconds), 1)
	p.atLeast("database.read_max_connections", int64(c.Database.ReadMaxConnections), 0)
	p.atLeast("database.read_without_primary_seconds", int64(c.Database.ReadWithoutPrimarySeconds), 0)
	p.atLeast("search.default_count", int64(c.Search.DefaultCount), 1)
	p.atLeast("search.max_count", int64(c.Search.MaxCount), 1)
	p.atLeast("log.slow_search_ms", int64(c.Log.SlowSearchMS), 0)
	p.atLeast("search.timeout_seconds", int64(c.Search.TimeoutSeconds), 1)
	p.atLeast("search.stored_minutes", int64(c.Search.StoredMinutes), 1)
	p.atLeast("search.memory_mb", int64(c.Search.MemoryMB), 0)
	p.atLeast("terminology.cache_ttl_secs", int64(c.Terminology.CacheTTLSecs), 1)
	c.Apps.check(&p)
	p.atLeast("terminology.timeout_seconds", int64(c.Terminology.TimeoutSeconds), 1)
	if c.Search.DefaultCount > c.Search.MaxCount {
		p.add("search.default_count is %d, more than search.max_count, %d", c.Search.DefaultCount, c.Search.MaxCount)
	}
	for _, canonical := range c.Server.Instantiates {
		if u, err := url.Parse(canonical); err != nil || u.Scheme == "" {
			p.add("server.instantiates has %q: expected the canonical URL of a CapabilityStatement", canonical)
		}
	}
	p.baseURL("server.base_url", c.Server.BaseURL)
	p.baseURL("terminology.server_url", c.Terminology.ServerURL)
	p.databaseURL("database.url", c.Database.URL)
	for i, url := range c.Database.ReadURLs {
		p.replicaURL(fmt.Sprintf("database.read_urls[%d]", i), url)
	}
	if c.Database.URL == "" && c.Database.DataDir == "" {
		p.add("database.url and database.data_dir are both empty: one of them says where the data is")
	}
	if _, err := c.trustedProxies(); err != nil {
		p.add("%v", err)
	}
	p.join(c.Notifications.check())
	p.join(c.Server.TLS.check())
	c.Jobs.check(&p)
	c.Bulk.check(&p)
	c.Views.check(&p)
	c.Console.check(&p)
	p.join(c.Audit.check())
	c.Telemetry.check(&p)
	p.join(c.Auth.Check())
	return p.err()
}

// CheckServe is Check, and refuses what would leave a server open to everyone.
func (c Config) CheckServe() error {
	return errors.Join(c.Check(), c.checkAuth(), access.CheckListen("server.listen", c.Server.Listen, c.Auth.Enabled), c.checkMetricsListen())
}

// checkMetricsListen refuses a second listener that is the first, or one that would leave
// metrics open to everyone.
func (c Config) checkMetricsListen() error {
	at := c.Server.MetricsListen
	if at == "" {
		return nil
	}
	if _, port, err := net.SplitHostPort(at); err != nil {
		return fmt.Errorf("server.metrics_listen: %q is not host:port: %w", at, err)
	} else if at == c.Server.Listen && port != "0" {
		return fmt.Errorf("server.metrics_listen and server.listen are both %s: expected two addresses, or an empty server.metrics_listen", at)
	}
	return access.CheckListen("server.metrics_listen", at, c.Auth.Enabled)
}

// trustedProxies reads addresses and networks.
func (c Config) trustedProxies() ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, text := range c.Server.TrustedProxies {
		if p, err := netip.ParsePrefix(text); err == nil {
			out = append(out, p)
			continue
		}
		a, err := netip.ParseAddr(text)
		if err != nil {
			return nil, fmt.Errorf("server.trusted_proxies has %q: expected an address such as 10.0.0.1 or a network such as 10.0.0.0/8", text)
		}
		out = append(out, netip.PrefixFrom(a, a.BitLen()))
	}
	return out, nil
}

func (c Config) baseURL() string { return strings.TrimRight(c.Server.BaseURL, "/") }

// address is baseURL, or the FHIR base at the address that the server listens on.
func (c Config) address() string {
	if base := c.baseURL(); base != "" {
		return base
	}
	return c.Server.Scheme() + "://" + c.Server.Listen + "/fhir"
}

// baseURLs are the URLs that name this service in references.
func (c Config) baseURLs() []string {
	if base := c.baseURL(); base != "" {
		// Kiln serves each path with and without /fhir.
		outer := strings.TrimSuffix(base, "/fhir")
		return []string{outer + "/fhir", outer}
	}
	at := c.Server.Scheme() + "://" + c.Server.Listen
	return []string{at + "/fhir", at, strings.Replace(at, "127.0.0.1", "localhost", 1) + "/fhir", strings.Replace(at, "127.0.0.1", "localhost", 1)}
}

func (c Config) drain() time.Duration { return time.Duration(c.Server.DrainSeconds) * time.Second }
