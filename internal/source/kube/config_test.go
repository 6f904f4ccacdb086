package kube

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const kubeconfig = `
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://10.0.0.1:6443"}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`

func TestRESTConfig(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	t.Setenv("KUBERNETES_SERVICE_PORT", "")
	t.Setenv("KUBECONFIG", "/nowhere")
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := write("good", kubeconfig)
	empty := write("empty", "apiVersion: v1\nkind: Config\n")
	for _, tc := range []struct {
		name string
		in   Connection
		host string
		err  []string // parts of the message
	}{
		{"nothing", Connection{}, "", []string{"--kubeconfig", "--master", "--manifests"}},
		{"file", Connection{Kubeconfig: good}, "https://10.0.0.1:6443", nil},
		{"master wins", Connection{Kubeconfig: good, Master: "https://10.0.0.2"}, "https://10.0.0.2", nil},
		{"only master", Connection{Master: "http://127.0.0.1:8080"}, "http://127.0.0.1:8080", nil},
		{"no such file", Connection{Kubeconfig: filepath.Join(dir, "none")}, "", []string{"read kubeconfig", "no such file"}},
		{"not a kubeconfig", Connection{Kubeconfig: write("bad", "a: [")}, "", []string{"read kubeconfig"}},
		{"empty", Connection{Kubeconfig: empty}, "", []string{"names no cluster", "--master"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := RESTConfig(tc.in)
			for _, word := range tc.err {
				if err == nil || !strings.Contains(err.Error(), word) {
					t.Errorf("error %v lacks %q", err, word)
				}
			}
			if tc.err != nil {
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got.Host != tc.host {
				t.Errorf("host %q, want %q", got.Host, tc.host)
			}
		})
	}
}

func TestRESTConfigOptions(t *testing.T) {
	got, err := RESTConfig(Connection{Master: "http://x", QPS: 7, Burst: 9})
	if err != nil {
		t.Fatal(err)
	}
	if got.ContentType != "application/vnd.kubernetes.protobuf" ||
		got.AcceptContentTypes != "application/vnd.kubernetes.protobuf,application/json" {
		t.Errorf("content types %q, %q", got.ContentType, got.AcceptContentTypes)
	}
	if got.QPS != 7 || got.Burst != 9 || got.UserAgent != "sluice" {
		t.Errorf("QPS %v, burst %v, agent %q", got.QPS, got.Burst, got.UserAgent)
	}
	got, err = RESTConfig(Connection{
		Master: "http://x", ContentType: "application/json", AcceptContentTypes: "application/json",
	})
	if err != nil || got.ContentType != "application/json" || got.AcceptContentTypes != "application/json" {
		t.Errorf("configured content types: %v, %v", got, err)
	}
}

func TestDialDoesNotConnect(t *testing.T) {
	client, err := Dial(Connection{Master: "http://192.0.2.1:1"})
	if err != nil || client == nil {
		t.Errorf("Dial = %v, %v; want a client", client, err)
	}
	if _, err := Dial(Connection{Kubeconfig: filepath.Join(t.TempDir(), "none")}); err == nil {
		t.Error("Dial accepts a missing kubeconfig")
	}
	if _, err := Dial(Connection{Master: "http://[::1"}); err == nil {
		t.Error("Dial accepts an invalid URL")
	}
}
