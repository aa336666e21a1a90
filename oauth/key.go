package oauth

import (
	"bytes"
	"context"
	"crypto"
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"

	"kiln/oauth/storage"
)

// ahead is how long a key is published before it signs, so that a client that caches our
// keys for a day knows it in time.
const ahead = 24 * time.Hour

// signingKey is a key of ours.
type signingKey struct {
	storage.Key
	private crypto.Signer
	public  jose.JSONWebKey
	mu      sync.Mutex
	signers map[jose.ContentType]jose.Signer
}

// signer signs with the key as a JWT of type typ.
func (k *signingKey) signer(typ jose.ContentType) (jose.Signer, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if s := k.signers[typ]; s != nil {
		return s, nil
	}
	s, err := jose.NewSigner(jose.SigningKey{
		Algorithm: jose.SignatureAlgorithm(k.Algorithm),
		Key:       jose.JSONWebKey{Key: k.private, KeyID: k.Kid},
	}, (&jose.SignerOptions{}).WithType(typ))
	if err == nil {
		k.signers[typ] = s
	}
	return s, err
}

// keyring holds the signing keys of all servers of the database. It is read again when the
// keys have changed.
type keyring struct {
	store    *storage.Store
	rotation func() time.Duration // age at which a key is replaced
	sealing  string
	now      func() time.Time

	keys    atomic.Pointer[[]*signingKey] // oldest first
	keeping sync.Mutex
	asked   atomic.Uint64 // numbers the questions of load
	mu      sync.Mutex
	loaded  time.Time // of the last load for an unknown key
	latest  uint64    // the question that keys answers
}

// currentKey is the key of an algorithm that signs now. It stays published until a token
// that it signs is over, at expires.
func (r *keyring) currentKey(ctx context.Context, alg string, expires time.Time) (*signingKey, error) {
	k := r.findSigningKey(alg)
	if k == nil && slices.Contains(signingAlgorithms, alg) {
		if err := r.ensureKey(ctx, alg); err != nil {
			return nil, err
		}
		k = r.findSigningKey(alg)
	}
	if k != nil && !k.TokensUntil.Before(expires) {
		return k, nil
	}
	return r.keepKey(ctx, alg, expires)
}

// keepKey is current for a token that is over later than those before it: the database
// hears of that, and of an hour more, so that the tokens of an hour cost one write.
func (r *keyring) keepKey(ctx context.Context, alg string, expires time.Time) (*signingKey, error) {
	r.keeping.Lock()
	defer r.keeping.Unlock()
	for k := r.findSigningKey(alg); k != nil; k = r.findSigningKey(alg) {
		if !k.TokensUntil.Before(expires) {
			return k, nil
		}
		if err := r.store.KeepKey(ctx, k.Kid, expires.Add(time.Hour)); err != nil {
			return nil, fmt.Errorf("keep a signing key: %w", err)
		}
		if err := r.loadKeys(ctx); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("no key signs %s", alg)
}

func (r *keyring) findSigningKey(alg string) *signingKey {
	now := r.now()
	for _, k := range slices.Backward(*r.keys.Load()) {
		if k.Algorithm == alg && !k.SignsFrom.After(now) && k.PublishedUntil.After(now) {
			return k
		}
	}
	return nil
}

// findKey is the published key of an id; keys of other servers that are new are read,
// at most once a second.
func (r *keyring) findKey(ctx context.Context, kid string) *signingKey {
	now := r.now()
	look := func() *signingKey {
		for _, k := range *r.keys.Load() {
			if k.Kid == kid && k.PublishedUntil.After(now) {
				return k
			}
		}
		return nil
	}
	if k := look(); k != nil {
		return k
	}
	r.mu.Lock()
	fresh := now.Sub(r.loaded) < time.Second
	if !fresh {
		r.loaded = now
	}
	r.mu.Unlock()
	if fresh || r.loadKeys(ctx) != nil {
		return nil
	}
	return look()
}

// publishedKeys are the public keys, for /.well-known/jwks.json.
func (r *keyring) publishedKeys() jose.JSONWebKeySet {
	set := jose.JSONWebKeySet{Keys: []jose.JSONWebKey{}}
	now := r.now()
	for _, k := range *r.keys.Load() {
		if k.PublishedUntil.After(now) {
			set.Keys = append(set.Keys, k.public)
		}
	}
	return set
}

// loadKeys reads the keys. The answer to an earlier question never takes the place of the answer to a later one.
func (r *keyring) loadKeys(ctx context.Context) error {
	question := r.asked.Add(1)
	rows, err := r.store.Keys(ctx)
	if err != nil {
		return fmt.Errorf("read signing keys: %w", err)
	}
	known := make(map[string]*signingKey)
	if old := r.keys.Load(); old != nil {
		for _, k := range *old {
			known[k.Kid] = k
		}
	}
	keys := make([]*signingKey, 0, len(rows))
	for _, row := range rows {
		if k := known[row.Kid]; k != nil && k.SignsFrom.Equal(row.SignsFrom) && k.PublishedUntil.Equal(row.PublishedUntil) && k.TokensUntil.Equal(row.TokensUntil) {
			keys = append(keys, k)
			continue
		}
		k, err := r.open(row)
		if err != nil {
			return err
		}
		keys = append(keys, k)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if question > r.latest {
		r.latest = question
		r.keys.Store(&keys)
	}
	return nil
}

func (r *keyring) open(row storage.Key) (*signingKey, error) {
	der := row.Private
	if row.Sealed {
		if r.sealing == "" {
			return nil, errors.New("auth.signing.encryption_key is empty, and the signing keys in the database are sealed with one")
		}
		var err error
		if der, err = unsealSecret(r.sealing, row.Private); err != nil {
			return nil, errors.New("auth.signing.encryption_key does not open the signing keys in the database")
		}
	}
	private, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, fmt.Errorf("read signing key %s: %w", row.Kid, err)
	}
	signer, ok := private.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("signing key %s is a %T", row.Kid, private)
	}
	return &signingKey{
		Key: row, private: signer, signers: make(map[jose.ContentType]jose.Signer),
		public: jose.JSONWebKey{Key: signer.Public(), KeyID: row.Kid, Algorithm: row.Algorithm, Use: "sig"},
	}, nil
}

// ensureKey makes the keys that are missing, and the next ones of those that are old. It
// seals keys that were made while there was no encryption key.
func (r *keyring) ensureKey(ctx context.Context, algs ...string) error {
	err := r.store.ChangeKeys(ctx, func(ctx context.Context, keys []storage.Key) error {
		now := r.now()
		if err := r.sealAll(ctx, keys); err != nil {
			return err
		}
		for _, alg := range algs {
			last := lastOf(keys, alg, now)
			switch {
			case last == nil:
				if err := r.addKey(ctx, alg, now); err != nil {
					return err
				}
			case now.After(last.SignsFrom.Add(r.rotation() - ahead)):
				from := last.SignsFrom.Add(r.rotation())
				if soonest := now.Add(ahead); from.Before(soonest) {
					from = soonest
				}
				if err := r.replace(ctx, *last, from); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("make signing keys: %w", err)
	}
	return r.loadKeys(ctx)
}

// sealAll seals the keys that stand in the clear, when there is an encryption key.
func (r *keyring) sealAll(ctx context.Context, keys []storage.Key) error {
	if r.sealing == "" {
		return nil
	}
	for _, k := range keys {
		if k.Sealed {
			continue
		}
		sealed, err := sealSecret(r.sealing, k.Private)
		if err != nil {
			return err
		}
		if err := r.store.SealKey(ctx, k.Kid, sealed); err != nil {
			return err
		}
	}
	return nil
}

// clockSkew bounds how far the clocks of two servers differ. A key that replaces a withdrawn
// one signs from so long ago, so that a server whose clock is behind can sign too.
const clockSkew = time.Minute

// rotateKeys makes the next key of every algorithm that has one. It signs after a day, or
// at once. At once is for a leaked key: a key that waits for its day takes over, because
// clients know it already, and all other keys of the algorithm are withdrawn.
func (r *keyring) rotateKeys(ctx context.Context, atOnce bool) error {
	err := r.store.ChangeKeys(ctx, func(ctx context.Context, keys []storage.Key) (err error) {
		now := r.now()
		for _, alg := range signingAlgorithms {
			last := lastOf(keys, alg, now)
			switch {
			case last == nil:
			case !atOnce:
				err = r.replace(ctx, *last, now.Add(ahead))
			default:
				if err = r.takeOver(ctx, alg, last, now); err != nil {
					return err
				}
				err = r.withdrawKeys(ctx, keys, func(k storage.Key) bool {
					return k.Algorithm == alg && (k.Kid != last.Kid || !last.SignsFrom.After(now))
				})
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return r.loadKeys(ctx)
}

// signingOf is the key of an algorithm that signs at a time, nil for none.
func signingOf(keys []storage.Key, alg string, now time.Time) *storage.Key {
	for i := range slices.Backward(keys) {
		if k := &keys[i]; k.Algorithm == alg && !k.SignsFrom.After(now) && k.PublishedUntil.After(now) {
			return k
		}
	}
	return nil
}

// lastOf is the published key of an algorithm that signs last.
func lastOf(keys []storage.Key, alg string, now time.Time) *storage.Key {
	for i := range slices.Backward(keys) {
		if keys[i].Algorithm == alg && keys[i].PublishedUntil.After(now) {
			return &keys[i]
		}
	}
	return nil
}

// takeOver makes a key of an algorithm sign from now on: the last one if it waits for its day,
// else a new one.
func (r *keyring) takeOver(ctx context.Context, alg string, last *storage.Key, now time.Time) error {
	if last != nil && last.SignsFrom.After(now) {
		return r.store.StartKey(ctx, last.Kid, now.Add(-clockSkew))
	}
	return r.addKey(ctx, alg, now.Add(-clockSkew))
}

// withdrawKeys removes keys from verification and publication, on every server; their tokens end.
func (r *keyring) withdrawKeys(ctx context.Context, keys []storage.Key, which func(storage.Key) bool) error {
	var ids []string
	for _, k := range keys {
		if which(k) {
			ids = append(ids, k.Kid)
		}
	}
	return r.store.WithdrawKeys(ctx, ids)
}

// revokeKey withdraws one key. An algorithm is never left without a key: if the key signs, the
// next one takes over, or a new one; if it waits for its day, another waits instead. It
// fails with storage.ErrNotFound if no such key is published.
func (r *keyring) revokeKey(ctx context.Context, kid string) error {
	err := r.store.ChangeKeys(ctx, func(ctx context.Context, keys []storage.Key) error {
		now := r.now()
		at := slices.IndexFunc(keys, func(k storage.Key) bool { return k.Kid == kid && k.PublishedUntil.After(now) })
		if at < 0 {
			return storage.ErrNotFound
		}
		revoked := keys[at]
		signs := signingOf(keys, revoked.Algorithm, now)
		signed := signs != nil && signs.Kid == kid
		if err := r.withdrawKeys(ctx, keys, func(k storage.Key) bool { return k.Kid == kid }); err != nil {
			return err
		}
		keys = slices.Delete(keys, at, at+1)
		last := lastOf(keys, revoked.Algorithm, now)
		switch {
		case signed, last == nil:
			return r.takeOver(ctx, revoked.Algorithm, last, now)
		case revoked.SignsFrom.After(now) && !last.SignsFrom.After(now): // nothing waits any more
			from := now.Add(ahead)
			if from.Before(revoked.SignsFrom) {
				from = revoked.SignsFrom
			}
			return r.replace(ctx, *last, from)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return r.loadKeys(ctx)
}

// replace adds the successor of last, which signs from then on.
func (r *keyring) replace(ctx context.Context, last storage.Key, from time.Time) error {
	if err := r.addKey(ctx, last.Algorithm, from); err != nil {
		return err
	}
	return r.store.RetireKey(ctx, last.Kid, from)
}

func (r *keyring) addKey(ctx context.Context, alg string, from time.Time) error {
	private, kid, err := generateKey(alg)
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return err
	}
	k := storage.Key{
		Kid: kid, Algorithm: alg, Private: der,
		Created: r.now(), SignsFrom: from, PublishedUntil: storage.Never,
	}
	if r.sealing != "" {
		if k.Private, err = sealSecret(r.sealing, der); err != nil {
			return err
		}
		k.Sealed = true
	}
	return r.store.AddKey(ctx, k)
}

// generateKey makes a private key and its kid: the first 96 bits of the thumbprint (RFC
// 7638), short because it is in every request. A kid that begins with a dash would be read
// as a flag by `kiln admin key revoke KID`, so such a key is thrown away.
func generateKey(alg string) (private crypto.Signer, kid string, err error) {
	for kid == "" || kid[0] == '-' {
		switch alg {
		case "ES256":
			private, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		case "ES384":
			private, err = ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
		default:
			private, err = rsa.GenerateKey(rand.Reader, 2048)
		}
		if err != nil {
			return nil, "", err
		}
		thumbprint, err := (&jose.JSONWebKey{Key: private.Public()}).Thumbprint(crypto.SHA256)
		if err != nil {
			return nil, "", err
		}
		kid = base64.RawURLEncoding.EncodeToString(thumbprint[:12])
	}
	return private, kid, nil
}

func sealer(key string) (cipher.AEAD, error) {
	sum := sha256.Sum256([]byte(key))
	block, err := aes.NewCipher(sum[:])
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// sealSecret encrypts by AES-256-GCM; the nonce comes first.
func sealSecret(key string, text []byte) ([]byte, error) {
	aead, err := sealer(key)
	if err != nil {
		return nil, err
	}
	nonce := make([]byte, aead.NonceSize())
	_, _ = rand.Read(nonce)
	return aead.Seal(nonce, nonce, text, nil), nil
}

func unsealSecret(key string, sealed []byte) ([]byte, error) {
	aead, err := sealer(key)
	if err != nil {
		return nil, err
	}
	if len(sealed) < aead.NonceSize() {
		return nil, errors.New("too short")
	}
	return aead.Open(nil, bytes.Clone(sealed[:aead.NonceSize()]), sealed[aead.NonceSize():], nil)
}
