package page

import (
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// Text can be read in light and dark: its contrast is at least 4.5 (WCAG 2.2, 1.4.3).
func TestContrast(t *testing.T) {
	light, dark, _ := strings.Cut(style, "prefers-color-scheme: dark")
	for scheme, text := range map[string]string{"light": light, "dark": dark} {
		colour := map[string]float64{}
		for _, m := range regexp.MustCompile(`--([a-z-]+): #([0-9a-f]{6})`).FindAllStringSubmatch(text, -1) {
			colour[m[1]] = luminance(t, m[2])
		}
		for _, pair := range [][2]string{
			{"text", "bg"},
			{"text", "card"},
			{"muted", "bg"},
			{"muted", "card"},
			{"accent", "card"},
			{"card", "accent"},
			{"text", "warn-bg"},
			{"muted", "warn-bg"},
			{"muted", "good-bg"},
			{"text", "good-bg"},
			{"accent", "warn-bg"},
			{"good", "good-bg"},
			{"warn", "warn-bg"},
			{"bad", "bad-bg"},
			{"muted", "bad-bg"},
			{"text", "bad-bg"},
		} {
			a, b := colour[pair[0]], colour[pair[1]]
			if ratio := (max(a, b) + 0.05) / (min(a, b) + 0.05); ratio < 4.5 {
				t.Errorf("%s: %s on %s has a contrast of %.2f", scheme, pair[0], pair[1], ratio)
			}
		}
	}
}

// luminance returns the relative luminance of a colour.
func luminance(t *testing.T, hex string) (sum float64) {
	t.Helper()
	for i, weight := range []float64{0.2126, 0.7152, 0.0722} {
		n, err := strconv.ParseUint(hex[2*i:2*i+2], 16, 8)
		if err != nil {
			t.Fatal(err)
		}
		c := float64(n) / 255
		if c <= 0.04045 {
			sum += weight * c / 12.92
		} else {
			sum += weight * math.Pow((c+0.055)/1.055, 2.4)
		}
	}
	return sum
}
