package bugreport

import (
	"bytes"
	"regexp"
	"slices"
)

const removed = "[removed]"

// Secrets returns a function that removes what looks like a secret, in whatever file it is: private keys, tokens,
// passwords in URLs, and values of such names.
func Secrets() func([]byte) []byte {
	names := [][]byte{
		[]byte("token"), []byte("passw"), []byte("secret"), []byte("key"), []byte("authorization"), []byte("-data"),
	}
	patterns := []struct {
		any  [][]byte // in lower case: no match without one of them, which is faster to find
		find *regexp.Regexp
		with string
	}{
		{
			[][]byte{[]byte("private key-")},
			regexp.MustCompile(`-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(-----END [A-Z ]*-----|$)`), removed,
		},
		// A JSON web token, such as the token of a service account.
		{[][]byte{[]byte("eyj")}, regexp.MustCompile(`eyJ[\w-]{8,}\.[\w-]+\.[\w-]*`), removed},
		{[][]byte{[]byte("@")}, regexp.MustCompile(`://[^/@\s"]+@`), "://" + removed + "@"},
		{[][]byte{[]byte("bearer ")}, regexp.MustCompile(`(?i)\b(bearer +)[\w.~+/=-]{8,}`), "$1" + removed},
		{
			names,
			regexp.MustCompile(`(?i)((?:token|passw(?:or)?d|secret|api-?key|authorization|client-key-data|` +
				`client-certificate-data)\\?["']?\s*[:=]\s*\\?["']?)[^\s"'\\,}]+`),
			"$1" + removed,
		},
	}
	return func(text []byte) []byte {
		lower := bytes.ToLower(text)
		for _, p := range patterns {
			if slices.ContainsFunc(p.any, func(word []byte) bool { return bytes.Contains(lower, word) }) {
				text = p.find.ReplaceAll(text, []byte(p.with))
			}
		}
		return text
	}
}
