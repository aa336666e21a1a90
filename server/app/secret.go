package app

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"kiln/gen/db"
	"kiln/server/outcome"
	"kiln/server/store"
)

// Secrets of Apps stand in the headers of their http handlers as ${secret:NAME}. They are
// kept in the database, sealed by AES-256-GCM where there is a key (auth.signing.encryption_key),
// and never shown. docs/contract.md, Apps, section 3.

const maxSecret = 8 << 10 // bytes

var (
	secretName      = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]{0,63}$`)
	secretReference = regexp.MustCompile(`\$\{secret:([^{}]*)\}`)
)

// sealer is the cipher of secrets.
func sealer(key string) (cipher.AEAD, error) {
	sum := sha256.Sum256([]byte("App secrets\n" + key))
	block, err := aes.NewCipher(sum[:])
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// bound is the owner of a sealed secret: it opens nowhere else.
func bound(app, name string) []byte { return []byte(app + "\n" + name) }

// putSecret stores a secret, effective at once on every server.
func (p *Platform) putSecret(ctx context.Context, app, name, value string) error {
	switch {
	case !secretName.MatchString(name):
		return outcome.Invalid("%q is no name of a secret: expected a letter and up to 63 letters, digits and _.-", clip(name))
	case value == "":
		return outcome.New(outcome.CodeRequired, "the secret needs a value, which is not empty")
	case len(value) > maxSecret:
		return outcome.New(outcome.CodeTooLong, "a secret has at most %d bytes", maxSecret)
	case strings.ContainsFunc(value, func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }):
		return outcome.Invalid("a secret cannot hold control characters: it is for a header")
	}
	params := db.PutAppSecretParams{App: app, Name: name, Value: []byte(value)}
	if p.SecretKey != "" {
		aead, err := sealer(p.SecretKey)
		if err != nil {
			return err
		}
		nonce := make([]byte, aead.NonceSize())
		_, _ = rand.Read(nonce) // never fails
		params.Value, params.Sealed = aead.Seal(nonce, nonce, []byte(value), bound(app, name)), true
	}
	return p.Store.InTx(ctx, func(t *store.Tx) error {
		if err := t.BumpApps(ctx); err != nil {
			return err
		}
		return db.New(t.Conn()).PutAppSecret(ctx, params)
	})
}

// deleteSecret fails with not-found where there is no such secret.
func (p *Platform) deleteSecret(ctx context.Context, app, name string) error {
	return p.Store.InTx(ctx, func(t *store.Tx) error {
		if err := t.BumpApps(ctx); err != nil {
			return err
		}
		n, err := db.New(t.Conn()).DeleteAppSecret(ctx, db.DeleteAppSecretParams{App: app, Name: name})
		if err == nil && n == 0 {
			err = outcome.New(outcome.CodeNotFound, "App/%s has no secret %q", app, clip(name))
		}
		return err
	})
}

// secrets are the secrets of all Apps, by App and name.
func (p *Platform) secrets(ctx context.Context) (map[string]map[string]string, error) {
	rows, err := db.New(p.Store.Pool()).AppSecrets(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("read the secrets of Apps: %w", err)
	}
	out := make(map[string]map[string]string)
	for _, r := range rows {
		value := string(r.Value)
		if r.Sealed {
			if value, err = p.unseal(r); err != nil {
				p.Logger.Error("a secret of an App cannot be opened", "app", r.App, "name", r.Name, "error", err)
				continue
			}
		}
		if out[r.App] == nil {
			out[r.App] = make(map[string]string)
		}
		out[r.App][r.Name] = value
	}
	return out, nil
}

func (p *Platform) unseal(r db.AppSecret) (string, error) {
	if p.SecretKey == "" {
		return "", errors.New("it is sealed, and auth.signing.encryption_key is empty")
	}
	aead, err := sealer(p.SecretKey)
	if err != nil {
		return "", err
	}
	if len(r.Value) < aead.NonceSize() {
		return "", errors.New("it is too short")
	}
	text, err := aead.Open(nil, r.Value[:aead.NonceSize()], r.Value[aead.NonceSize():], bound(r.App, r.Name))
	if err != nil {
		return "", errors.New("auth.signing.encryption_key is another one than it was sealed with")
	}
	return string(text), nil
}

// fillSecrets puts secrets into the headers of a handler. It fails where one is not set.
func (h *remote) fillSecrets(secrets map[string]string) error {
	var missing string
	for name, list := range h.headers {
		for i, value := range list {
			list[i] = secretReference.ReplaceAllStringFunc(value, func(m string) string {
				key := m[len("${secret:") : len(m)-1]
				secret, ok := secrets[key]
				if !ok {
					missing = key
				}
				return secret
			})
		}
		h.headers[name] = list
	}
	if missing != "" {
		return fmt.Errorf("its headers name the secret %q, which is not set", missing)
	}
	return nil
}
