package oauth

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strings"
	"sync"

	"golang.org/x/crypto/argon2"
)

// randomText returns 256 random bits, URL-safe.
func randomText() string {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails: crypto/rand
	return base64.RawURLEncoding.EncodeToString(b)
}

// argon2id with 19 MiB, two passes and one thread takes some 20 ms (OWASP's second
// choice of parameters). At most hashers hash at a time, so that sign-ins cannot
// use up the memory: more of them wait.
const (
	argonMemory = 19 << 10 // KiB
	argonTime   = 2
	argonKey    = 32
	hashers     = 4
)

var hashing = make(chan struct{}, hashers)

// hashPassword returns the argon2id hash of a password, in PHC's notation.
func hashPassword(ctx context.Context, password string) (string, error) {
	salt := make([]byte, 16)
	_, _ = rand.Read(salt)
	sum, err := argon(ctx, password, salt)
	if err != nil {
		return "", err
	}
	enc := base64.RawStdEncoding.EncodeToString
	return fmt.Sprintf("$argon2id$v=19$m=%d,t=%d,p=1$%s$%s", argonMemory, argonTime, enc(salt), enc(sum)), nil
}

func argon(ctx context.Context, password string, salt []byte) ([]byte, error) {
	select {
	case hashing <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-hashing }()
	return argon2.IDKey([]byte(password), salt, argonTime, argonMemory, 1, argonKey), nil
}

// nobody is the hash that an unknown name's password is held against, so that it
// takes as long as a known one's.
const nobody = "$argon2id$v=19$m=19456,t=2,p=1$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"

// passwordMatches reports whether a password is the hashed one. It costs the same
// time for a hash that is no hash.
func passwordMatches(ctx context.Context, hash, password string) (bool, error) {
	parts := strings.Split(hash, "$")
	good := len(parts) == 6 && parts[1] == "argon2id"
	if !good {
		parts = strings.Split(nobody, "$")
	}
	salt, err := base64.RawStdEncoding.DecodeString(parts[4])
	if err != nil {
		return false, fmt.Errorf("read a password hash: %w", err)
	}
	want, err := base64.RawStdEncoding.DecodeString(parts[5])
	if err != nil {
		return false, fmt.Errorf("read a password hash: %w", err)
	}
	sum, err := argon(ctx, password, salt)
	if err != nil {
		return false, err
	}
	return subtle.ConstantTimeCompare(sum, want) == 1 && good, nil
}

const madeSecret = "sha256:"

// hashMade hashes a secret of 256 random bits: nobody can guess it, so it needs no
// slow hash.
func hashMade(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return madeSecret + hex.EncodeToString(sum[:])
}

// secrets checks client secrets. A chosen secret is held against its argon2id hash
// once, then against a keyed hash in memory: a client that comes a thousand times a
// second costs one.
type secrets struct {
	key [32]byte
	mu  sync.Mutex
	// seen are keyed hashes of pairs of a stored hash and its secret.
	seen map[[32]byte]bool
}

const maxSeen = 10_000

func newSecrets() *secrets {
	s := &secrets{seen: make(map[[32]byte]bool)}
	_, _ = rand.Read(s.key[:])
	return s
}

func (s *secrets) matchSecret(ctx context.Context, hash, secret string) (bool, error) {
	if strings.HasPrefix(hash, madeSecret) {
		return subtle.ConstantTimeCompare([]byte(hashMade(secret)), []byte(hash)) == 1, nil
	}
	if hash == "" {
		return false, nil
	}
	pair := sha256.Sum256([]byte(string(s.key[:]) + hash + "\x00" + secret))
	s.mu.Lock()
	known := s.seen[pair]
	s.mu.Unlock()
	if known {
		return true, nil
	}
	ok, err := passwordMatches(ctx, hash, secret)
	if ok {
		s.mu.Lock()
		if len(s.seen) >= maxSeen {
			clear(s.seen)
		}
		s.seen[pair] = true
		s.mu.Unlock()
	}
	return ok, err
}
