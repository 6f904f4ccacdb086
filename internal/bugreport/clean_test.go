package bugreport

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// What looks like a secret is removed, wherever it is; other words stay.
func TestSecretsAreRemoved(t *testing.T) {
	const jwt = "eyJhbGciOiJSUzI1NiIsImtpZCI6IjEifQ.eyJzdWIiOiJ4In0.c2lnbmF0dXJl"
	const pem = "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nabc=\n-----END RSA PRIVATE KEY-----"
	for in, want := range map[string]string{
		"jwt " + jwt + " end":                       "jwt [removed] end",
		`{"a":"` + jwt + `"}`:                       `{"a":"[removed]"}`,
		"key:\n" + pem + "\nend":                    "key:\n[removed]\nend",
		strings.ReplaceAll(pem, "\n", `\n`) + ` x`:  "[removed] x",
		"-----BEGIN PRIVATE KEY-----\nthat is cut":  "[removed]",
		"get https://admin:pw@10.0.0.1:6443/api":    "get https://[removed]@10.0.0.1:6443/api",
		"Authorization: Bearer abcdefgh12345678":    "Authorization: [removed] [removed]",
		"with bearer abcdefgh12345678":              "with bearer [removed]",
		"token: s3cr3t-x":                           "token: [removed]",
		`{"password":"s3cr3t","port":80}`:           `{"password":"[removed]","port":80}`,
		`"text":"{\"token\":\"s3cr3t\"}"`:           `"text":"{\"token\":\"[removed]\"}"`,
		"api_key: 5":                                "api_key: 5",
		"PASSWORD=hunter2 x":                        "PASSWORD=[removed] x",
		"client-key-data: LS0tLS1C":                 "client-key-data: [removed]",
		"https://10.0.0.1:6443 is Kubernetes v1.34": "https://10.0.0.1:6443 is Kubernetes v1.34",
		"Services that need session affinity":       "Services that need session affinity",
		"kubeconfig: /var/lib/kube-proxy/config":    "kubeconfig: /var/lib/kube-proxy/config",
	} {
		if got := string(Secrets()([]byte(in))); got != want {
			t.Errorf("%q\nbecomes %q\nwant    %q", in, got, want)
		}
	}
}

func anonymizer(key string) *Anonymizer {
	return NewAnonymizer([]byte(key), []File{
		{
			Name: Services, Cluster: true,
			Text: []byte(`{"namespace":"shop","name":"web"}` + "\n" + `{"namespace":"default","name":"kubernetes"}` + "\n" +
				`{"namespace":"very-long-namespace-of-a-team","name":"a-service-with-a-long-name"}`),
		},
		{
			Name: "backends.json", Cluster: true,
			Text: []byte(`{"namespace":"shop","service":"db"}` + "\n" + `{"namespace":"sh`),
		},
		{
			Name: "status.json", Cluster: true,
			Text: []byte(`{"node":{"name":"node-a.example.com","zone":"zone-1"},` +
				`"problems":[{"object":"Service gone/old"},{"object":"Node Far-1"}],` +
				`"source":{"from":"https://api.example.org:6443"}}`),
		},
		{Name: "diff.txt", Text: []byte("comment default/payments; https://a:b@inside.example.org:6443/x")},
	}, "Host-7")
}

// Addresses and names become hashes, in all forms; the rest of the text stays, and so do well-known names.
func TestAddressesAndNamesBecomeHashes(t *testing.T) {
	a := anonymizer("k")
	name := func(s string) string { return a.hash("name", s) }
	ip4, ip6 := a.hash("ip4", "10.0.0.1"), a.hash("ip6", "fd00::1")
	for in, want := range map[string]string{
		"10.0.0.1:80 10.0.0.1/24":                ip4 + ":80 " + ip4 + "/24",
		"[fd00::1]:80 fd00::1/64 FD00:0::1":      "[" + ip6 + "]:80 " + ip6 + "/64 " + ip6,
		"::ffff:10.0.0.1":                        ip4,
		"[::ffff:10.0.0.1]:80":                   "[" + ip4 + "]:80",
		"to fd00::1: refused; at:fd00::1":        "to " + ip6 + ": refused; at:" + ip6,
		"02:42:ac:11:00:02":                      a.hash("mac", "02:42:ac:11:00:02"),
		"127.0.0.1:10249 ::1 :: 0.0.0.0 [::]:53": "127.0.0.1:10249 ::1 :: 0.0.0.0 [::]:53",
		"Linux 6.18.5-1 at 12:34:56, v1.2.0":     "Linux 6.18.5-1 at 12:34:56, v1.2.0",
		"2026-11-26T12:34:56.789Z":               "2026-11-26T12:34:56.789Z",
		`{"name":"web","web":"shop/web:http"}`: `{"name":"` + name("web") + `","web":"` + name("shop") + "/" +
			name("web") + `:http"}`,
		`"a\nweb\t10.0.0.1\u003eweb"`: `"a\n` + name("web") + `\t` + ip4 + `\u003e` + name("web") + `"`,
		"10.0.0.1-10.0.0.9":           ip4 + "-" + a.hash("ip4", "10.0.0.9"),
		"fd00::1-fd00::2":             ip6 + "-" + a.hash("ip6", "fd00::2"),
		"from 10.0.0.1. Then web.":    "from " + ip4 + ". Then " + name("web") + ".",
		`\`:                           `\`,
		"web-abc12 and db and webs":   name("web-abc12") + " and " + name("db") + " and webs",
		"web.shop.svc":                name("web") + "." + name("shop") + ".svc",
		"kube-system/kube-dns default/kubernetes": "kube-system/kube-dns default/kubernetes",
		"default/payments":                        "default/" + name("payments"),
		"gone/old on Far-1 host-7 HOST-7 far-2": name("gone") + "/" + name("old") + " on " + name("far-1") + " " +
			name("host-7") + " " + name("host-7") + " far-2",
		"node-a.example.com zone-1":    name("node-a.example.com") + " " + name("zone-1"),
		"inside.example.org":           name("inside.example.org"),
		"https://api.example.org:6443": "https://" + name("api.example.org") + ":6443",
		"a-service-with-a-lo":          name("a-service-with-a-lo"), // a comment that was cut off
		"a-service":                    "a-service",
		"KUBE-SVC-NPX46M4PTMTKRN6Y KUBE-SERVICES": "KUBE-SVC-" + strings.ToUpper(a.digest("KUBE-SVC-NPX46M4PTMTKRN6Y")) +
			" KUBE-SERVICES",
		"ip daddr . tcp dport : goto pick-3; eth0": "ip daddr . tcp dport : goto pick-3; eth0",
	} {
		if diff := cmp.Diff(want, string(a.Clean([]byte(in)))); diff != "" {
			t.Errorf("%q (-want +got):\n%s", in, diff)
		}
	}
}

// The hashes of two archives differ.
func TestHashesDependOnTheKey(t *testing.T) {
	clean := func(key string) []byte { return anonymizer(key).Clean([]byte("shop/web 10.0.0.1")) }
	one, again, other := clean("k"), clean("k"), clean("l")
	if !bytes.Equal(one, again) || bytes.Equal(one, other) || strings.Contains(string(one), "web") {
		t.Errorf("%s, %s, %s", one, again, other)
	}
}

// A large file takes a part of the time that is left after Deadline.
func TestALargeFileIsCleanedInTime(t *testing.T) {
	var items []string
	for i := range 20000 {
		items = append(items, fmt.Sprintf(`{"namespace":"team-%d","name":"service-%d","state":"programmed",`+
			`"ports":[{"protocol":"tcp","frontends":[{"address":"10.96.%d.%d","port":80}]}]}`, i%50, i, i/256, i%256))
	}
	text := []byte(strings.Join(items, "\n"))
	began := time.Now()
	a := NewAnonymizer([]byte("k"), []File{{Name: Services, Cluster: true, Text: text}})
	clean := a.Clean(Secrets()(text))
	t.Logf("%d bytes in %v", len(text), time.Since(began))
	for _, left := range []string{"service-19999", "team-7", "10.96.1.1"} {
		if bytes.Contains(clean, []byte(`"`+left+`"`)) {
			t.Errorf("%s is left", left)
		}
	}
}

// Files that may name objects are left out unless a whole file has all their names.
func TestNamesMustBeKnown(t *testing.T) {
	for name, services := range map[string]File{
		"missing": {Name: Services, Cluster: true, Err: errors.New("no daemon")},
		"cut":     {Name: Services, Cluster: true, Text: []byte(`{"name":"we`), Cut: true},
		"whole":   {Name: Services, Cluster: true, Text: []byte(`{"name":"web"}`)},
	} {
		a := Archive{Clean: Secrets(), Files: []File{
			services, {Name: "status.json", Cluster: true, Text: []byte("{}")}, {Name: "kernel.json", Text: []byte("{}")},
		}}.Anonymous("host")
		if left := a.Files[1].Err == nil; left != (name == "whole") || a.Files[2].Err != nil {
			t.Errorf("%s: %+v", name, a.Files)
		}
		if got := string(a.Clean([]byte("web"))); got == "web" && name == "whole" {
			t.Error("a name is left")
		}
	}
}
