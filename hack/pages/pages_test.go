// Package pages_test verifies the pages of the project.
package pages_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

// files returns the files of the project with one of some extensions, by their paths. Folders that make creates are
// left out.
func files(t *testing.T, extensions ...string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && slices.Contains([]string{".git", ".cache", "bin", "testdata"}, entry.Name()):
			return fs.SkipDir
		case entry.IsDir() || !slices.Contains(extensions, filepath.Ext(path)):
			return nil
		}
		text, err := os.ReadFile(path)
		name, _ := filepath.Rel(root, path) // path is below root
		all[filepath.ToSlash(name)] = string(text)
		return err
	})
	if err != nil || len(all) == 0 {
		t.Fatalf("%d files: %v", len(all), err)
	}
	return all
}

// anchors returns the anchors of the headings of a page, as GitHub makes them.
func anchors(text string) (list []string) {
	other := regexp.MustCompile("[^a-z0-9 _-]")
	for line := range strings.Lines(text) {
		if title := strings.TrimLeft(line, "#"); title != line {
			title = other.ReplaceAllString(strings.ToLower(strings.TrimSpace(title)), "")
			list = append(list, strings.ReplaceAll(title, " ", "-"))
		}
	}
	return list
}

// Each link from a page to another one leads to a file that exists, and to a heading.
func TestLinks(t *testing.T) {
	pages := files(t, ".md")
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	n := 0
	for name, text := range pages {
		for _, found := range link.FindAllStringSubmatch(text, -1) {
			to, anchor, hasAnchor := strings.Cut(found[1], "#")
			if strings.Contains(to, ":") {
				continue // on another site
			}
			n++
			page := name
			if to != "" {
				page = filepath.ToSlash(filepath.Join(filepath.Dir(name), to))
			}
			if _, err := os.Stat(filepath.Join(root, page)); err != nil {
				t.Errorf("%s: %s leads nowhere", name, found[1])
			}
			if hasAnchor && !slices.Contains(anchors(pages[page]), anchor) {
				t.Errorf("%s: %s leads to no heading", name, found[1])
			}
		}
	}
	if n < 100 {
		t.Errorf("only %d links were found", n)
	}
}

// RELEASE.md lists each place that the owner of the project has to fill in, and no other.
func TestPlacesOfTheOwner(t *testing.T) {
	place := regexp.MustCompile(`\[owner: [^\]]+\]`)
	listed, found := []string{}, []string{}
	pages := files(t, ".md", ".yml", "")
	for name, text := range pages {
		if name == "RELEASE.md" {
			for line := range strings.Lines(text) {
				if cells := strings.Split(line, "|"); len(cells) == 4 && place.MatchString(cells[2]) {
					listed = append(listed, strings.TrimSpace(cells[1])+" "+strings.TrimSpace(cells[2]))
				}
			}
			continue
		}
		for _, p := range place.FindAllString(text, -1) {
			found = append(found, name+" "+p)
		}
	}
	slices.Sort(listed)
	slices.Sort(found)
	if !slices.Equal(listed, found) {
		t.Errorf("RELEASE.md lists\n%s\nthere are\n%s", strings.Join(listed, "\n"), strings.Join(found, "\n"))
	}
}
