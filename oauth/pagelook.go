package oauth

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"

	"kiln/oauth/storage"
)

// PagesConfig is the look of the pages and the parts of types on the consent page.
type PagesConfig struct {
	Name   string           `koanf:"name" doc:"name of this server on its pages"`
	Logo   string           `koanf:"logo" doc:"file with the logo of the pages: SVG, PNG, JPEG, GIF or WebP"`
	Colour string           `koanf:"colour" doc:"colour of buttons and links, as #rrggbb; it is made darker or lighter where it could not be read"`
	Parts  []map[string]any `koanf:"parts" doc:"parts of a resource type that a person may choose at consent: type, search, name, name_de"`
}

// DisplayName is what the server is called to people.
func (c PagesConfig) DisplayName() string { return c.name() }

func (c PagesConfig) name() string {
	if c.Name == "" {
		return "Kiln"
	}
	return c.Name
}

var colourSyntax = regexp.MustCompile(`^#[0-9A-Fa-f]{6}$`)

// check refuses a logo, a colour and parts that the pages could not show.
func (c PagesConfig) check() error {
	var wrong []error
	if len(c.Name) > 100 {
		wrong = append(wrong, fmt.Errorf("auth.pages.name has %d bytes: expected 100 at most", len(c.Name)))
	}
	if c.Colour != "" && !colourSyntax.MatchString(c.Colour) {
		wrong = append(wrong, fmt.Errorf("auth.pages.colour is %q: expected such as #0b57a4", c.Colour))
	}
	if c.Logo != "" {
		if _, err := readLogo(c.Logo); err != nil {
			wrong = append(wrong, fmt.Errorf("auth.pages.logo: %w", err))
		}
	}
	if _, err := readParts(c.Parts); err != nil {
		wrong = append(wrong, err)
	}
	return errors.Join(wrong...)
}

// maxLogo bounds the file of the logo, in bytes.
const maxLogo = 256 << 10

// picture is a file that the pages show.
type picture struct {
	mediaType string
	body      []byte
}

// readLogo reads a picture. It refuses every other file, so that a setting cannot publish
// files of the machine.
func readLogo(file string) (*picture, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no file", file)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxLogo+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxLogo {
		return nil, fmt.Errorf("%s has more than %d bytes", file, maxLogo)
	}
	typ := http.DetectContentType(b)
	text := bytes.TrimSpace(b)
	if bytes.HasPrefix(text, []byte("<svg")) || bytes.HasPrefix(text, []byte("<?xml")) && bytes.Contains(text, []byte("<svg")) {
		typ = "image/svg+xml"
	}
	switch typ {
	case "image/svg+xml", "image/png", "image/jpeg", "image/gif", "image/webp":
		return &picture{typ, b}, nil
	}
	return nil, fmt.Errorf("%s is no SVG, PNG, JPEG, GIF or WebP", file)
}

// useLogo puts the logo of a configuration to use.
func (s *Server) useLogo(c PagesConfig) error {
	if c.Logo == "" {
		s.logo.Store(nil)
		return nil
	}
	logo, err := readLogo(c.Logo)
	if err == nil {
		s.logo.Store(logo)
	}
	return err
}

// Addresses of the pages' style sheet and pictures.
const (
	faviconPath = "/auth/favicon.svg"
	logoPath    = "/auth/logo"
	styleSheet  = "/auth/style.css"
)

// servePicture writes a picture, which may not run or load anything.
func servePicture(w http.ResponseWriter, p *picture) {
	h := w.Header()
	h.Set("Content-Type", p.mediaType)
	h.Set("Cache-Control", "public, max-age=3600")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; sandbox")
	_, _ = w.Write(p.body)
}

func (s *Server) serveLogo(w http.ResponseWriter, _ *http.Request) {
	logo := s.logo.Load()
	if logo == nil {
		http.Error(w, "not found", http.StatusNotFound)
		return
	}
	servePicture(w, logo)
}

func (s *Server) serveFavicon(w http.ResponseWriter, _ *http.Request) {
	b, err := pageFiles.ReadFile("pages/favicon.svg")
	if err != nil {
		http.Error(w, "not found", http.StatusNotFound)
		return
	}
	servePicture(w, &picture{"image/svg+xml", b})
}

// The grounds of the pages that text in the colour stands on, light and dark, and what
// stands on the colour.
var (
	lightGround, lightOn = colour{0xf4, 0xf5, 0xf7}, colour{0xff, 0xff, 0xff}
	darkGround, darkOn   = colour{0x1f, 0x24, 0x29}, colour{0x10, 0x20, 0x2f}
)

// leastContrast is the minimum for text. WCAG 2.2, 1.4.3.
const leastContrast = 4.5

// colour is red, green and blue.
type colour [3]float64

func (c colour) String() string {
	return fmt.Sprintf("#%02x%02x%02x", int(math.Round(c[0])), int(math.Round(c[1])), int(math.Round(c[2])))
}

// luminance is the relative luminance. WCAG 2.2, relative luminance.
func (c colour) luminance() float64 {
	sum := 0.0
	for i, weight := range []float64{0.2126, 0.7152, 0.0722} {
		v := math.Round(c[i]) / 255
		if v <= 0.04045 {
			v /= 12.92
		} else {
			v = math.Pow((v+0.055)/1.055, 2.4)
		}
		sum += weight * v
	}
	return sum
}

func (c colour) contrast(d colour) float64 {
	a, b := c.luminance(), d.luminance()
	return (max(a, b) + 0.05) / (min(a, b) + 0.05)
}

// readable moves a colour towards another one until it has enough contrast with both of
// its neighbours.
func (c colour) readable(towards float64, beside ...colour) colour {
	for range 100 {
		enough := true
		for _, d := range beside {
			enough = enough && c.contrast(d) >= leastContrast
		}
		if enough {
			return c
		}
		for i := range c {
			c[i] += (towards - c[i]) * 0.05
		}
	}
	return colour{towards, towards, towards}
}

// pageColours are auth.pages.colour on light and on dark pages; "" where none is set.
func (s *Server) pageColours() (light, dark string) {
	text := s.Config().Pages.Colour
	if !colourSyntax.MatchString(text) {
		return "", ""
	}
	n, _ := strconv.ParseUint(text[1:], 16, 32)
	c := colour{float64(n >> 16 & 255), float64(n >> 8 & 255), float64(n & 255)}
	return c.readable(0, lightGround, lightOn).String(), c.readable(255, darkGround, darkOn).String()
}

// styleText is the style sheet in the colour of the configuration.
func (s *Server) styleText() (string, error) {
	b, err := pageFiles.ReadFile("pages/style.css")
	if err != nil {
		return "", err
	}
	var more strings.Builder
	if light, dark := s.pageColours(); light != "" {
		fmt.Fprintf(&more, ":root { --first: %s; }\n@media (prefers-color-scheme: dark) { :root { --first: %s; } }\n", light, dark)
	}
	return string(b) + more.String(), nil
}

// styleAddress is the address of the style sheet, another one for another colour.
func (s *Server) styleAddress() string {
	text, err := s.styleText()
	if err != nil {
		return styleSheet
	}
	return styleSheet + "?v=" + storage.Hash(text)[:12]
}

func (s *Server) serveStyle(w http.ResponseWriter, _ *http.Request) {
	text, err := s.styleText()
	if err != nil {
		http.Error(w, "not found", http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "text/css; charset=utf-8")
	w.Header().Set("Cache-Control", "public, max-age=3600")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write([]byte(text))
}
