package bugreport

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// Anonymizer replaces addresses, and names of objects of a cluster, by hashes: the same by the same.
type Anonymizer struct {
	key   []byte // the hashes of two archives differ, and nobody can try names
	names map[string]bool
	begin []string          // names, sorted
	known map[string]string // words that were replaced before: most are there again and again
}

func wellKnown() []string {
	return []string{"", "default", "kube-system", "kube-public", "kube-node-lease", "kubernetes", "kube-dns", "localhost"}
}

// Anonymous returns the archive with hashes in place of addresses and names, including the name of this host. Files
// that name objects are left out if not all names are known.
func (a Archive) Anonymous(host string) Archive {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	anonymizer, secrets := NewAnonymizer(key, a.Files, host), a.Clean
	a.Clean = func(text []byte) []byte { return anonymizer.Clean(secrets(text)) }
	a.About += "Addresses and names are hashes.\n"
	whole := slices.ContainsFunc(a.Files, func(f File) bool { return f.Name == Services && f.Err == nil && !f.Cut })
	for i, f := range a.Files {
		if !whole && f.Cluster && f.Err == nil {
			err := fmt.Errorf("left out: --anonymize needs a complete %s to know all names", Services)
			a.Files[i] = File{Name: f.Name, Err: err}
		}
	}
	return a
}

// NewAnonymizer returns an Anonymizer that knows the names in files, and others.
func NewAnonymizer(key []byte, files []File, others ...string) *Anonymizer {
	a := &Anonymizer{key: key, names: map[string]bool{}, known: map[string]string{}}
	for _, name := range others {
		a.add(name)
	}
	for _, f := range files {
		a.addFields(f)
	}
	for _, f := range files {
		a.addBeside(f.Text)
	}
	a.begin = slices.Sorted(maps.Keys(a.names))
	return a
}

func (a *Anonymizer) add(name string) {
	if name = strings.ToLower(name); !slices.Contains(wellKnown(), name) {
		a.names[name] = true
	}
}

// addFields adds the names in the fields of the objects in a file.
func (a *Anonymizer) addFields(f File) {
	if !f.Cluster {
		return
	}
	for objects := json.NewDecoder(bytes.NewReader(f.Text)); ; {
		var v struct {
			Namespace, Name, Service string
			Node                     struct{ Name, Zone string }
			Configuration            struct{ HostnameOverride string }
		}
		if objects.Decode(&v) != nil { // the end, or the file is cut here
			return
		}
		for _, name := range []string{
			v.Namespace, v.Name, v.Service, v.Node.Name, v.Node.Zone, v.Configuration.HostnameOverride,
		} {
			a.add(name)
		}
	}
}

// addBeside adds names that follow a kind, a namespace with a known name, or the scheme of a URL.
func (a *Anonymizer) addBeside(text []byte) {
	namespaced := []string{"Service", "EndpointSlice", "Endpoints", "Pod"}
	var kind, last string
	var end int
	for begin, stop := range words(text) {
		between := string(text[end:begin])
		word := string(text[begin:stop])
		switch {
		case between == " " && slices.Contains(namespaced, last) && bytes.HasPrefix(text[stop:], []byte("/")):
			kind = last
			a.add(word)
		case between == "/" && (kind != "" || a.names[strings.ToLower(last)] || slices.Contains(wellKnown(), last)):
			name, _, _ := strings.Cut(word, ":")
			a.add(strings.Trim(name, ".-_"))
			kind = ""
		case between == " " && last == "Node" && bytes.HasPrefix(text[stop:], []byte(`"`)): // the whole value of a field
			a.add(word)
		case between == "//" && strings.HasPrefix(last, "http") && !bytes.HasPrefix(text[stop:], []byte("@")), between == "@":
			host, _, _ := strings.Cut(word, ":")
			a.add(host)
		}
		last, end = word, stop
	}
}

// words yields where words begin and end: runs of the characters of names and addresses. An escape of JSON is none.
func words(text []byte) func(yield func(begin, end int) bool) {
	return func(yield func(begin, end int) bool) {
		for i := 0; i < len(text); {
			if text[i] == '\\' {
				i += 2
				if i <= len(text) && text[i-1] == 'u' {
					i += 4
				}
				continue
			}
			begin := i
			for i < len(text) && ofWord(text[i]) {
				i++
			}
			if i > begin && !yield(begin, i) {
				return
			}
			if i == begin {
				i++
			}
		}
	}
}

func ofWord(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || strings.IndexByte("-_.:", c) >= 0
}

// Clean returns a text with hashes. The keys of JSON stay. One goroutine may call it at a time.
func (a *Anonymizer) Clean(text []byte) []byte {
	out, end := make([]byte, 0, len(text)+len(text)/4), 0
	for begin, stop := range words(text) {
		if bytes.HasPrefix(text[stop:], []byte(`":`)) {
			continue
		}
		with, known := a.known[string(text[begin:stop])]
		if !known {
			word := string(text[begin:stop])
			with = a.word(word)
			a.known[word] = with
		}
		out = append(append(out, text[end:begin]...), with...)
		end = stop
	}
	return append(out, text[end:]...)
}

var (
	ip4   = regexp.MustCompile(`\d{1,3}(?:\.\d{1,3}){3}`)
	chain = regexp.MustCompile(`^KUBE-[A-Z]+-[A-Z0-9]{16}$`) // of one Service
)

// word replaces the addresses in a word, or else the names.
func (a *Anonymizer) word(word string) string {
	if _, err := net.ParseMAC(word); err == nil && strings.Contains(word, ":") {
		return a.hash("mac", strings.ToLower(word))
	}
	if strings.Count(word, ".") >= 3 && !strings.Contains(word, "::") && ip4.MatchString(word) {
		return ip4.ReplaceAllStringFunc(word, a.address)
	}
	if first, last, ranged := strings.Cut(word, "-"); ranged && strings.Contains(first, ":") &&
		strings.Contains(last, ":") {
		return a.word(first) + "-" + a.word(last)
	}
	if strings.Count(word, ":") >= 2 {
		return a.inColons(word)
	}
	return a.parts(word, ":")
}

// inColons replaces the longest IPv6 address of a word such as "at:fd00::1:", or else the names between the colons.
func (a *Anonymizer) inColons(word string) string {
	for _, end := range []int{len(word), len(strings.TrimRight(word, ".")), len(strings.TrimSuffix(word, ":"))} {
		for begin := range end {
			if begin > 0 && word[begin-1] != ':' {
				continue
			}
			if _, err := netip.ParseAddr(word[begin:end]); err == nil {
				return a.word(word[:begin]) + a.address(word[begin:end]) + word[end:]
			}
		}
	}
	return a.parts(word, ":")
}

// address replaces an address, unless it is one that every host has.
func (a *Anonymizer) address(text string) string {
	addr, err := netip.ParseAddr(text)
	addr = addr.Unmap()
	switch {
	case err != nil, addr.IsLoopback(), addr.IsUnspecified():
		return text
	case addr.Is4():
		return a.hash("ip4", addr.String())
	}
	return a.hash("ip6", addr.String())
}

// name replaces a name, a longer one that begins with it as the names of pods and EndpointSlices do, each name
// between dots, and the chain of a Service, whose name is made from the name of the Service.
func (a *Anonymizer) name(word string) string {
	if chain.MatchString(word) {
		return word[:strings.LastIndexByte(word, '-')+1] + strings.ToUpper(a.digest(word))
	}
	core := strings.Trim(word, ".-_")
	if lower := strings.ToLower(core); a.secret(lower) {
		return strings.Replace(word, core, a.hash("name", lower), 1)
	}
	if !strings.Contains(core, ".") {
		return word
	}
	return a.parts(word, ".")
}

// parts replaces the names between separators.
func (a *Anonymizer) parts(word, separator string) string {
	parts := strings.Split(word, separator)
	for i := range parts {
		parts[i] = a.name(parts[i])
	}
	return strings.Join(parts, separator)
}

// cutName is how long the begin of a name is that counts as one: comments in the kernel may be cut off.
const cutName = 16

func (a *Anonymizer) secret(word string) bool {
	if a.names[word] {
		return true
	}
	for i := range len(word) {
		if word[i] == '-' && a.names[word[:i]] {
			return true
		}
	}
	if len(word) < cutName {
		return false
	}
	i, _ := slices.BinarySearch(a.begin, word)
	return i < len(a.begin) && strings.HasPrefix(a.begin[i], word)
}

func (a *Anonymizer) hash(kind, value string) string { return kind + "-" + a.digest(value) }

func (a *Anonymizer) digest(value string) string {
	h := hmac.New(sha256.New, a.key)
	h.Write([]byte(value))
	const length = 6 // bytes: a cluster has far fewer names than would collide
	return hex.EncodeToString(h.Sum(nil)[:length])
}

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
