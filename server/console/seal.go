package console

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
)

// sealer encrypts texts that stand in addresses and cookies. One text always gives the same address, on every server of a
// database: the nonce is an HMAC of the text, so that a nonce comes twice only with the same text (RFC 8452 §1 says why).
type sealer struct {
	aead        cipher.AEAD
	nonce, form []byte
}

func newSealer(key []byte) (*sealer, error) {
	derive := func(use string) []byte {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(use))
		return mac.Sum(nil)
	}
	block, err := aes.NewCipher(derive("encrypt"))
	if err != nil {
		return nil, fmt.Errorf("key of the console: %w", err)
	}
	aead, err := cipher.NewGCM(block)
	return &sealer{aead, derive("nonce"), derive("form")}, err
}

// seal encrypts a text for a purpose.
func (s *sealer) seal(purpose, text string) string {
	mac := hmac.New(sha256.New, s.nonce)
	fmt.Fprintf(mac, "%d:%s%s", len(purpose), purpose, text)
	nonce := mac.Sum(nil)[:s.aead.NonceSize()]
	return base64.RawURLEncoding.EncodeToString(s.aead.Seal(nonce, nonce, []byte(text), []byte(purpose)))
}

// open decrypts a result of seal for the same purpose.
func (s *sealer) open(purpose, sealed string) (text string, ok bool) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(sealed)
	n := s.aead.NonceSize()
	if err != nil || len(b) < n {
		return "", false
	}
	plain, err := s.aead.Open(nil, b[:n], b[n:], []byte(purpose))
	return string(plain), err == nil
}

// token is a text that only the servers of the database can derive from another one.
func (s *sealer) token(purpose, text string) string {
	mac := hmac.New(sha256.New, s.form)
	fmt.Fprintf(mac, "%d:%s%s", len(purpose), purpose, text)
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}
