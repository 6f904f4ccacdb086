package pages_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// parse reads a file of the site into a value.
func parse(t *testing.T, name string, into any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "site", name))
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

// The side bar of the site names each page of docs/ once. The configuration lists the pages of docs/decisions.
func TestSectionsOfTheSite(t *testing.T) {
	var sections map[string][]string
	parse(t, ".vitepress/sections.json", &sections)
	got, want := []string{}, []string{}
	for _, names := range sections {
		got = append(got, names...)
	}
	pages, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		want = append(want, strings.TrimSuffix(filepath.Base(page), ".md"))
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("site/.vitepress/sections.json lists\n%q\ndocs/ has\n%q", got, want)
	}
}

// What builds the site is pinned, comes from the public registry, and has checksums.
func TestPackagesOfTheSite(t *testing.T) {
	var wanted struct {
		Dependencies map[string]string `json:"devDependencies"`
		Overrides    map[string]string `json:"overrides"`
	}
	parse(t, "package.json", &wanted)
	exact := regexp.MustCompile(`^\d+\.\d+\.\d+$`)
	for _, list := range []map[string]string{wanted.Dependencies, wanted.Overrides} {
		for name, version := range list {
			if !exact.MatchString(version) {
				t.Errorf("%s %s: want one version", name, version)
			}
		}
	}

	var lock struct {
		Packages map[string]struct {
			Resolved  string `json:"resolved"`
			Integrity string `json:"integrity"`
		} `json:"packages"`
	}
	parse(t, "package-lock.json", &lock)
	if len(lock.Packages) < 2 {
		t.Errorf("%d packages", len(lock.Packages))
	}
	for name, p := range lock.Packages {
		public := strings.HasPrefix(p.Resolved, "https://registry.npmjs.org/") && strings.HasPrefix(p.Integrity, "sha512-")
		if name != "" && !public {
			t.Errorf("%s: from %q with %q, want https://registry.npmjs.org/ and a SHA-512", name, p.Resolved, p.Integrity)
		}
	}
}
