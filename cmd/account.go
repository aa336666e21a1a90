package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"kiln/oauth"
	"kiln/oauth/storage"
	"kiln/server"
	"kiln/server/access"
	"kiln/server/outcome"
	"kiln/server/search"
	"kiln/server/smart"
	"kiln/server/store"
)

// onAccounts runs a command on the clients, users and keys of the configured
// database; no server is needed. Servers that run on it learn of it by themselves.
func onAccounts(run func(c *cobra.Command, a *oauth.Admin, args []string) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, args []string) error {
		return onDatabase(func(c *cobra.Command, url string) error {
			cfg, err := loadConfig(c)
			if err != nil {
				return err
			}
			if err := store.Migrate(c.Context(), url); err != nil {
				return err
			}
			pool, err := pgxpool.New(c.Context(), url)
			if err != nil {
				return err
			}
			defer pool.Close()
			a := oauth.NewAdmin(storage.New(pool), cfg.Auth)
			resources := &storedResources{url: url}
			defer resources.close()
			a.Records = resources
			return run(c, a, args)
		})(c, args)
	}
}

// storedResources says whether a resource is stored, without a server.
type storedResources struct {
	url   string
	store *store.Store
}

// open opens the store once.
func (r *storedResources) open(ctx context.Context) error {
	if r.store != nil {
		return nil
	}
	s, err := store.Open(ctx, store.Config{URL: r.url, Logger: slog.New(slog.DiscardHandler)})
	r.store = s
	return err
}

// Means reports whether a scope can match a resource. A search parameter that this program lacks may be
// a stored SearchParameter: the server decides on it when it grants the scope.
func (r *storedResources) Means(ctx context.Context, scope smart.Scope) bool {
	parameters, err := server.CompiledParameters()
	if err != nil {
		return true
	}
	d := &access.Decider{Registry: func() *search.Registry { return parameters }}
	if d.ScopeMatchesAny(ctx, scope) {
		return true
	}
	if scope.Type != "*" && !parameters.Has(scope.Type) || r.open(ctx) != nil {
		return false
	}
	more := false
	err = r.store.Pool().QueryRow(ctx, `SELECT EXISTS (SELECT FROM resource r JOIN resource_type t ON t.typ = r.typ WHERE t.name = 'SearchParameter')`).Scan(&more)
	return err != nil || more
}

// Exists reports whether a reference such as Practitioner/1 has a target.
func (r *storedResources) Exists(ctx context.Context, reference string) (bool, error) {
	if err := r.open(ctx); err != nil {
		return false, err
	}
	typ, id, _ := strings.Cut(reference, "/")
	v, err := r.store.Read(ctx, typ, id)
	if outcome.Is(err, outcome.CodeNotFound, outcome.CodeDeleted) {
		return false, nil
	}
	return err == nil && !v.Deleted(), err
}

func (r *storedResources) close() {
	if r.store != nil {
		r.store.Close()
	}
}

// fields are the flags of a record: the names of its JSON, with dashes.
type fields struct {
	flags *pflag.FlagSet
	json  map[string]string // flag -> field
}

// singular lets a list be given by its singular: --scope for --scopes.
var singular = map[string]string{
	"redirect-uri": "redirect-uris", "scope": "scopes", "grant-type": "grant-types", "role": "roles", "allowed-origin": "allowed-origins",
	"post-logout-redirect-uri": "post-logout-redirect-uris",
}

// acceptPluralOfScope lets --scopes be given for --scope.
func acceptPluralOfScope(f *pflag.FlagSet) {
	f.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "scopes" {
			name = "scope"
		}
		return pflag.NormalizedName(name)
	})
}

func newFields(c *cobra.Command) *fields {
	c.Flags().SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if plural, ok := singular[name]; ok {
			name = plural
		}
		return pflag.NormalizedName(name)
	})
	return &fields{flags: c.Flags(), json: make(map[string]string)}
}

func (f *fields) text(flag, field, usage string) {
	f.json[flag] = field
	f.flags.String(flag, "", usage)
}
func (f *fields) bool(flag, field, usage string) {
	f.json[flag] = field
	f.flags.Bool(flag, false, usage)
}
func (f *fields) list(flag, field, usage string) {
	f.json[flag] = field
	f.flags.StringSlice(flag, nil, usage)
}

// scopeList is the value of a flag with scopes: between spaces or commas, or the flag
// again. A comma in the search of a granular scope belongs to that scope, unless another
// one with a context follows.
type scopeList []string

// scopesFlag is a flag with scopes.
func scopesFlag(f *pflag.FlagSet, name, usage string) *scopeList {
	list := new(scopeList)
	f.Var(list, name, usage)
	return list
}

// Type is named in the help.
func (l *scopeList) Type() string { return "scopes" }

// String is the list as OAuth writes it.
func (l *scopeList) String() string { return strings.Join(*l, " ") }

// Set adds scopes.
func (l *scopeList) Set(text string) error {
	for field := range strings.FieldsSeq(text) {
		last := ""
		for part := range strings.SplitSeq(field, ",") {
			if context, _, ok := strings.Cut(part, "/"); strings.Contains(last, "?") && !(ok && slices.Contains([]string{"patient", "user", "system"}, context)) {
				last += "," + part
				(*l)[len(*l)-1] = last
			} else if part != "" {
				last = part
				*l = append(*l, part)
			}
		}
	}
	return nil
}

// body is the given fields, as JSON.
func (f *fields) body(more map[string]any) ([]byte, error) {
	out := make(map[string]any)
	for flag, field := range f.json {
		given := f.flags.Lookup(flag)
		if given == nil || !given.Changed {
			continue
		}
		switch given.Value.Type() {
		case "bool":
			out[field] = given.Value.String() == "true"
		case "scopes":
			out[field] = append([]string{}, *given.Value.(*scopeList)...) // none is a list, too
		case "stringSlice":
			list, err := f.flags.GetStringSlice(flag)
			if err != nil {
				return nil, err
			}
			out[field] = list
		default:
			out[field] = given.Value.String()
		}
	}
	if path, ok := out["jwks"].(string); ok {
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		out["jwks"] = json.RawMessage(b)
	}
	for name, value := range more {
		out[name] = value
	}
	return json.Marshal(out)
}

// named is the record that a command is about: its argument, or the flag.
func named(c *cobra.Command, args []string, flag string) (string, error) {
	given, _ := c.Flags().GetString(flag)
	switch {
	case len(args) == 1 && (given == "" || given == args[0]):
		return args[0], nil
	case len(args) == 0 && given != "":
		return given, nil
	case len(args) == 0:
		return "", fmt.Errorf("say which one: an argument, or --%s", flag)
	}
	return "", fmt.Errorf("%s and --%s %s are two", args[0], flag, given)
}

// tell prints a record as JSON, in the form that /admin returns, and on the last line a
// secret that is shown once.
func tell(c *cobra.Command, record any, secret string) error {
	if err := printJSON(c.OutOrStdout(), record); err != nil || secret == "" || wantsJSON(c) {
		return err
	}
	fmt.Fprintln(c.OutOrStdout(), secret)
	return nil
}

// client is `kiln admin client`.
func client() *cobra.Command {
	c := &cobra.Command{Use: "client", Short: "Manage OAuth clients, on the database itself", Args: cobra.NoArgs, RunE: help}
	clientFields := func(c *cobra.Command) *fields {
		f := newFields(c)
		f.text("client-id", "clientId", "client id (default generated)")
		f.text("name", "name", "display name")
		f.bool("confidential", "confidential", "it can keep a secret")
		f.text("token-endpoint-auth-method", "tokenEndpointAuthMethod", "none, client_secret_basic, client_secret_post or private_key_jwt")
		f.text("client-secret", "clientSecret", "secret of your choice (default generated)")
		f.text("jwks", "jwks", "file with the public keys of the client, a JWK set")
		f.text("jwks-uri", "jwksUri", "URL of the public keys of the client, a JWK set")
		f.list("redirect-uris", "redirectUris", "addresses to which users return after the sign-in")
		f.list("post-logout-redirect-uris", "postLogoutRedirectUris", "addresses to which users return after the sign-out")
		f.text("launch-uri", "launchUri", "launch page of the client, which an EHR opens")
		f.list("grant-types", "grantTypes", "authorization_code, client_credentials, refresh_token")
		f.json["scopes"] = "scopes"
		scopesFlag(f.flags, "scopes", "scopes that it may request")
		f.text("access-token-lifetime", "accessTokenLifetime", "such as 10m")
		f.text("refresh-token-lifetime", "refreshTokenLifetime", "such as 90d")
		f.bool("pkce-required", "pkceRequired", "refuse authorization requests without PKCE")
		f.list("allowed-origins", "allowedOrigins", "origins of web pages that may call the token endpoint")
		f.bool("may-introspect", "mayIntrospect", "it may introspect any token")
		f.bool("trusted", "trusted", "first party: no consent page")
		f.text("id-token-signing-alg", "idTokenSigningAlg", "RS256, RS384, ES256 or ES384")
		return f
	}

	create := &cobra.Command{Use: "create [CLIENT-ID]", Short: "Register a client, and print its secret on the last line", Args: cobra.MaximumNArgs(1)}
	created := clientFields(create)
	create.RunE = onAccounts(func(c *cobra.Command, a *oauth.Admin, args []string) error {
		more := map[string]any{}
		if len(args) == 1 {
			more["clientId"] = args[0]
		}
		body, err := created.body(more)
		if err != nil {
			return err
		}
		answer, err := a.CreateClient(c.Context(), body)
		if err != nil {
			return err
		}
		return tell(c, answer, answer.ClientSecret)
	})

	update := &cobra.Command{Use: "update CLIENT-ID", Short: "Change the given fields of a client", Args: cobra.MaximumNArgs(1)}
	updated := clientFields(update)
	update.RunE = onAccounts(func(c *cobra.Command, a *oauth.Admin, args []string) error {
		id, err := named(c, args, "client-id")
		if err != nil {
			return err
		}
		body, err := updated.body(map[string]any{"clientId": id})
		if err != nil {
			return err
		}
		answer, err := a.PatchClient(c.Context(), id, body)
		if err != nil {
			return err
		}
		return tell(c, answer, answer.ClientSecret)
	})

	secret := &cobra.Command{Use: "secret CLIENT-ID", Short: "Replace the secret of a client, and print the new one on the last line", Args: cobra.MaximumNArgs(1)}
	secret.Flags().String("client-id", "", "client id")
	secret.Flags().String("client-secret", "", "secret of your choice (default generated)")
	secret.RunE = onAccounts(func(c *cobra.Command, a *oauth.Admin, args []string) error {
		id, err := named(c, args, "client-id")
		if err != nil {
			return err
		}
		chosen, err := c.Flags().GetString("client-secret")
		if err != nil {
			return err
		}
		answer, err := a.NewClientSecret(c.Context(), id, chosen)
		if err != nil {
			return err
		}
		return tell(c, answer, answer.ClientSecret)
	})

	c.AddCommand(create, update, secret,
		listing("clients", func(ctx context.Context, a *oauth.Admin) (any, error) { return a.Clients(ctx) }),
		one("show", "Show a client", "client-id", func(ctx context.Context, a *oauth.Admin, id string) (any, error) { return a.Client(ctx, id) }),
		one("disable", "Disable a client; its tokens end", "client-id", func(ctx context.Context, a *oauth.Admin, id string) (any, error) {
			return a.PatchClient(ctx, id, []byte(`{"active": false}`))
		}),
		one("enable", "Enable a disabled client", "client-id", func(ctx context.Context, a *oauth.Admin, id string) (any, error) {
			return a.PatchClient(ctx, id, []byte(`{"active": true}`))
		}),
		one("delete", "Delete a client; its tokens end", "client-id", func(ctx context.Context, a *oauth.Admin, id string) (any, error) {
			return nil, a.DeleteClient(ctx, id)
		}),
	)
	return c
}

func help(c *cobra.Command, _ []string) error { return c.Help() }

func listing(what string, list func(context.Context, *oauth.Admin) (any, error)) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List all " + what, Args: cobra.NoArgs,
		RunE: onAccounts(func(c *cobra.Command, a *oauth.Admin, _ []string) error {
			all, err := list(c.Context(), a)
			if err != nil {
				return err
			}
			return printJSON(c.OutOrStdout(), all)
		}),
	}
}

func one(use, short, flag string, do func(context.Context, *oauth.Admin, string) (any, error)) *cobra.Command {
	c := &cobra.Command{Use: use + " " + strings.ToUpper(flag), Short: short, Args: cobra.MaximumNArgs(1)}
	c.Flags().String(flag, "", "which one")
	c.RunE = onAccounts(func(c *cobra.Command, a *oauth.Admin, args []string) error {
		id, err := named(c, args, flag)
		if err != nil {
			return err
		}
		answer, err := do(c.Context(), a, id)
		if err != nil || answer == nil {
			return err
		}
		return printJSON(c.OutOrStdout(), answer)
	})
	return c
}

// user is `kiln admin user`.
func user() *cobra.Command {
	c := &cobra.Command{Use: "user", Short: "Manage users, on the database itself", Args: cobra.NoArgs, RunE: help}
	userFields := func(c *cobra.Command) *fields {
		f := newFields(c)
		f.text("username", "username", "name for the sign-in")
		f.text("password", "password", "at least 12 characters (default generated); --password-stdin keeps it out of the shell history")
		f.flags.Bool("password-stdin", false, "read the password from standard input")
		f.text("name", "name", "display name")
		f.text("email", "email", "e-mail address")
		f.text("fhir-user", "fhirUser", "Practitioner/x, Patient/x, RelatedPerson/x or Person/x; it must exist")
		f.list("roles", "roles", "roles, such as admin")
		return f
	}
	given := func(c *cobra.Command, f *fields, name string) ([]byte, error) {
		more := map[string]any{"username": name}
		if stdin, _ := c.Flags().GetBool("password-stdin"); stdin {
			password, err := readLine(c.InOrStdin())
			if err != nil {
				return nil, err
			}
			more["password"] = password
		}
		return f.body(more)
	}

	create := &cobra.Command{Use: "create USERNAME", Short: "Create a user, and print a generated password on the last line", Args: cobra.MaximumNArgs(1)}
	created := userFields(create)
	create.RunE = onAccounts(func(c *cobra.Command, a *oauth.Admin, args []string) error {
		name, err := named(c, args, "username")
		if err != nil {
			return err
		}
		body, err := given(c, created, name)
		if err != nil {
			return err
		}
		answer, err := a.CreateUser(c.Context(), body)
		if err != nil {
			return err
		}
		return tell(c, answer, answer.Password)
	})

	update := &cobra.Command{Use: "update USERNAME", Short: "Change the given fields of a user", Args: cobra.MaximumNArgs(1)}
	updated := userFields(update)
	update.RunE = onAccounts(func(c *cobra.Command, a *oauth.Admin, args []string) error {
		name, err := named(c, args, "username")
		if err != nil {
			return err
		}
		body, err := given(c, updated, name)
		if err != nil {
			return err
		}
		answer, err := a.PatchUser(c.Context(), name, body)
		if err != nil {
			return err
		}
		return tell(c, answer, "")
	})

	password := &cobra.Command{Use: "password USERNAME", Short: "Replace the password of a user, and print a generated one on the last line", Args: cobra.MaximumNArgs(1)}
	password.Flags().String("username", "", "name of the user")
	password.Flags().String("password", "", "the password (default generated); --password-stdin keeps it out of the shell history")
	password.Flags().Bool("password-stdin", false, "read the password from standard input")
	password.RunE = onAccounts(func(c *cobra.Command, a *oauth.Admin, args []string) error {
		name, err := named(c, args, "username")
		if err != nil {
			return err
		}
		chosen, err := c.Flags().GetString("password")
		if err != nil {
			return err
		}
		if stdin, _ := c.Flags().GetBool("password-stdin"); stdin {
			if chosen, err = readLine(c.InOrStdin()); err != nil {
				return err
			}
		}
		answer, err := a.NewPassword(c.Context(), name, chosen)
		if err != nil {
			return err
		}
		return tell(c, answer, answer.Password)
	})

	c.AddCommand(create, update, password,
		listing("users", func(ctx context.Context, a *oauth.Admin) (any, error) { return a.Users(ctx) }),
		one("show", "Show a user", "username", func(ctx context.Context, a *oauth.Admin, id string) (any, error) { return a.User(ctx, id) }),
		one("disable", "Disable a user; the user's tokens end", "username", func(ctx context.Context, a *oauth.Admin, id string) (any, error) {
			return a.PatchUser(ctx, id, []byte(`{"active": false}`))
		}),
		one("enable", "Enable a disabled user", "username", func(ctx context.Context, a *oauth.Admin, id string) (any, error) {
			return a.PatchUser(ctx, id, []byte(`{"active": true}`))
		}),
		one("delete", "Delete a user; the user's tokens end", "username", func(ctx context.Context, a *oauth.Admin, id string) (any, error) {
			return nil, a.DeleteUser(ctx, id)
		}),
	)
	return c
}

func readLine(in io.Reader) (string, error) {
	line, err := bufio.NewReader(io.LimitReader(in, 4096)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	if line = strings.TrimRight(line, "\r\n"); line == "" {
		return "", errors.New("standard input has no password")
	}
	return line, nil
}

// key is `kiln admin key`.
func signingKey() *cobra.Command {
	c := &cobra.Command{Use: "key", Short: "Manage the keys that sign tokens, on the database itself", Args: cobra.NoArgs, RunE: help}
	rotate := &cobra.Command{
		Use: "rotate", Short: "Create the next signing keys: published now, in use a day later", Args: cobra.NoArgs,
	}
	now := rotate.Flags().Bool("now", false, "for a leaked key: withdraw the keys until now, end their tokens, and sign with the next keys at once")
	rotate.RunE = onAccounts(func(c *cobra.Command, a *oauth.Admin, _ []string) error {
		if err := a.RotateKeys(c.Context(), *now); err != nil {
			return err
		}
		keys, err := a.SigningKeys(c.Context())
		if err != nil {
			return err
		}
		return printJSON(c.OutOrStdout(), keys)
	})
	revoke := one("revoke", "Withdraw a leaked key at once; its tokens end, and another key signs", "kid", func(ctx context.Context, a *oauth.Admin, id string) (any, error) {
		if err := a.RevokeKey(ctx, id); err != nil {
			return nil, err
		}
		return a.SigningKeys(ctx)
	})
	c.AddCommand(rotate, revoke, listing("signing keys", func(ctx context.Context, a *oauth.Admin) (any, error) { return a.SigningKeys(ctx) }))
	return c
}

// apiKey is `kiln admin apikey`.
func apiKey() *cobra.Command {
	c := &cobra.Command{Use: "apikey", Short: "Manage API keys of internal services, on the database itself", Args: cobra.NoArgs, RunE: help}
	create := &cobra.Command{Use: "create", Short: "Create an API key, and print it alone on the last line", Args: cobra.NoArgs}
	f := create.Flags()
	acceptPluralOfScope(f)
	scope := scopesFlag(f, "scope", "scopes of the key: system/…, metrics, admin")
	name := f.String("name", "", "purpose of the key")
	expires := f.String("expires", "", "lifetime, such as 90d (default unlimited)")
	create.RunE = onAccounts(func(c *cobra.Command, a *oauth.Admin, _ []string) error {
		key, err := a.CreateAPIKey(c.Context(), *name, scope.String(), *expires)
		if err != nil {
			return err
		}
		if wantsJSON(c) {
			return printJSON(c.OutOrStdout(), key)
		}
		until := "it does not expire"
		if key.Expires != nil {
			until = "it expires " + key.Expires.Local().Format(time.DateTime)
		}
		fmt.Fprintf(c.OutOrStdout(), "API key %s (%s) with scope %s; %s. It is shown this once:\n%s\n", key.ID, key.Name, key.Scope, until, key.Key)
		return nil
	})
	c.AddCommand(create,
		listing("API keys", func(ctx context.Context, a *oauth.Admin) (any, error) { return a.APIKeys(ctx) }),
		one("revoke", "Revoke an API key, by its id or itself", "id", func(ctx context.Context, a *oauth.Admin, id string) (any, error) {
			return nil, a.RevokeAPIKey(ctx, id)
		}),
	)
	return c
}

// grant is `kiln admin grant`.
func grant() *cobra.Command {
	c := &cobra.Command{Use: "grant", Short: "List and revoke the grants of users to apps, on the database itself", Args: cobra.NoArgs, RunE: help}
	list := &cobra.Command{Use: "list", Short: "List the grants of users to apps", Args: cobra.NoArgs}
	listUser := list.Flags().String("user", "", "only this user's grants")
	listClient := list.Flags().String("client", "", "only grants to this client")
	list.RunE = onAccounts(func(c *cobra.Command, a *oauth.Admin, _ []string) error {
		all := []oauth.GrantAnswer{}
		q := oauth.GrantQuery{User: *listUser, Client: *listClient, Count: 1000}
		for {
			page, err := a.Grants(c.Context(), q)
			if err != nil {
				return err
			}
			all = append(all, page.Grants...)
			if page.Next == nil {
				return printJSON(c.OutOrStdout(), all)
			}
			q.After = all[len(all)-1].ID
		}
	})
	revoke := &cobra.Command{
		Use: "revoke [ID]", Short: "Revoke a user's grant to an app: its tokens and the stored consent", Args: cobra.MaximumNArgs(1),
	}
	revoke.Flags().String("id", "", "which one")
	user := revoke.Flags().String("user", "", "user of the grant")
	client := revoke.Flags().String("client", "", "client of the grant")
	revoke.RunE = onAccounts(func(c *cobra.Command, a *oauth.Admin, args []string) error {
		if *user != "" && *client != "" && len(args) == 0 {
			return a.WithdrawAccess(c.Context(), *user, *client)
		}
		if *user != "" || *client != "" {
			return errors.New("expected an id, or --user and --client")
		}
		id, err := named(c, args, "id")
		if err != nil {
			return err
		}
		return a.RevokeGrant(c.Context(), id)
	})
	c.AddCommand(list, revoke)
	return c
}

// consoleSession is `kiln admin session`.
func consoleSession() *cobra.Command {
	c := &cobra.Command{Use: "session", Short: "List and revoke the sessions of the console, on the database itself", Args: cobra.NoArgs, RunE: help}
	list := &cobra.Command{Use: "list", Short: "List the open sessions of the console", Args: cobra.NoArgs}
	user := list.Flags().String("user", "", "only this user's sessions")
	list.RunE = onAccounts(func(c *cobra.Command, a *oauth.Admin, _ []string) error {
		all, err := a.Sessions(c.Context(), *user, oauth.ConsoleTimes{Idle: 365 * 24 * time.Hour, Lifetime: 365 * 24 * time.Hour})
		if err != nil {
			return err
		}
		return printJSON(c.OutOrStdout(), all)
	})
	revoke := &cobra.Command{Use: "revoke [ID]", Short: "End a session of the console, on every server", Args: cobra.MaximumNArgs(1)}
	revoke.Flags().String("id", "", "which one")
	revoke.RunE = onAccounts(func(c *cobra.Command, a *oauth.Admin, args []string) error {
		id, err := named(c, args, "id")
		if err != nil {
			return err
		}
		return a.EndSession(c.Context(), id)
	})
	c.AddCommand(list, revoke)
	return c
}

// token is `kiln token`.
func token() *cobra.Command {
	c := &cobra.Command{Use: "token", Short: "Create access tokens, and explain their rights"}
	mint := &cobra.Command{
		Use: "mint", Short: "Create an access token on the database itself, and print it alone on the last line", Args: cobra.NoArgs,
		Long: `Make an access token of a client, or of a user of a client, without a sign-in. The client and
the user must be there. It is for tests and for administrators in need: whoever can run it
has the database anyhow.`,
	}
	f := mint.Flags()
	var m oauth.Minting
	f.StringVar(&m.ClientID, "client", "", "client that the token is for")
	acceptPluralOfScope(f)
	scope := scopesFlag(f, "scope", "scopes of the token")
	f.StringVar(&m.Username, "user", "", "user that the token is for (default the client itself)")
	f.StringVar(&m.Patient, "patient", "", "patient of the launch context")
	f.StringVar(&m.Encounter, "encounter", "", "encounter of the launch context")
	f.StringVar(&m.Lifetime, "expires", "1h", "lifetime")
	mint.RunE = onAccounts(func(c *cobra.Command, a *oauth.Admin, _ []string) error {
		cfg, err := loadConfig(c)
		if err != nil {
			return err
		}
		m.Scope = scope.String()
		minted, err := a.Mint(c.Context(), oauth.IssuerOf(cfg.Auth, cfg.Server.BaseURL, cfg.Server.Listen), cfg.Server.BaseURL, m)
		if err != nil {
			return err
		}
		fmt.Fprintln(c.OutOrStdout(), minted)
		return nil
	})

	explain := &cobra.Command{
		Use: "explain TOKEN [METHOD PATH]", Short: "Explain a token: its owner, and the scopes and policies that decide on a request", Args: cobra.RangeArgs(1, 3),
	}
	var r remote
	explain.Flags().StringVar(&r.server, "server", "", "base URL of the server (default the configured one)")
	explain.Flags().StringVar(&r.token, "admin-token", "", "token with the scope admin (default made for this question, on the database itself)")
	explain.RunE = func(c *cobra.Command, args []string) error {
		if len(args) == 2 {
			return errors.New("a method and a path belong together: kiln token explain TOKEN GET /Patient/1")
		}
		if r.token == "" {
			return onAccounts(func(c *cobra.Command, a *oauth.Admin, _ []string) (err error) {
				key, err := a.CreateAPIKey(c.Context(), "kiln token explain", "admin", "1m")
				if err != nil {
					return err
				}
				defer func() { err = errors.Join(err, a.DeleteAPIKey(context.WithoutCancel(c.Context()), key.Key)) }()
				r.token = key.Key
				return explainToken(c, r, args)
			})(c, nil)
		}
		return explainToken(c, r, args)
	}
	c.AddCommand(mint, explain, newKey())
	return c
}

// explainToken asks the running server about a token, and a request where args has one.
func explainToken(c *cobra.Command, r remote, args []string) error {
	question := map[string]string{"token": args[0]}
	if len(args) == 3 {
		question["method"], question["path"] = strings.ToUpper(args[1]), args[2]
	}
	body, err := json.Marshal(question)
	if err != nil {
		return err
	}
	answer, err := r.call(c, "POST", "/admin/token/explain", "application/json", body)
	if err != nil {
		return err
	}
	var tree any
	if err := json.Unmarshal(answer, &tree); err != nil {
		return err
	}
	return printJSON(c.OutOrStdout(), tree)
}
