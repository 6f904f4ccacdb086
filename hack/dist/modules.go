package main

import (
	"bytes"
	"cmp"
	"debug/buildinfo"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/google/licensecheck"
)

// module is a Go module, or the standard library, whose code is in the programs.
type module struct {
	path, version string
	licence       string            // an SPDX expression
	texts         map[string]string // licences and notices, by path in the module
}

// standard is the path of the standard library as databases of vulnerabilities name it.
const standard = "stdlib"

// modulesOf returns the modules that the programs name in their build information, sorted by path, with their licences.
func modulesOf(programs []string) ([]module, error) {
	versions := map[string]string{}
	for _, name := range programs {
		info, err := buildinfo.ReadFile(name)
		if err != nil {
			return nil, err
		}
		versions[standard] = strings.TrimPrefix(info.GoVersion, "go")
		for _, m := range info.Deps {
			if m.Replace != nil {
				m = m.Replace
			}
			versions[m.Path] = m.Version
		}
	}
	folders, err := packageFolders()
	if err != nil {
		return nil, err
	}
	var modules []module
	var errs []error
	for _, path := range slices.Sorted(maps.Keys(versions)) {
		m, err := licensed(module{path: path, version: versions[path]}, folders[path])
		if err != nil {
			errs = append(errs, fmt.Errorf("%s %s: %w", m.path, m.version, err))
		}
		modules = append(modules, m)
	}
	return modules, errors.Join(errs...)
}

// folder is the folder of a package, and of its module.
type folder struct{ module, dir string }

// packageFolders returns the folders of the packages that the programs have on any system, by the path of their module.
func packageFolders() (map[string][]folder, error) {
	all := map[string][]folder{}
	for _, goos := range []string{"linux", "darwin", "windows"} {
		cmd := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}\t{{.Dir}}\t{{$.Dir}}{{end}}",
			"./cmd/sluice")
		cmd.Env = append(os.Environ(), "GOOS="+goos, "CGO_ENABLED=0")
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("list packages: %w", err)
		}
		for line := range strings.Lines(string(out)) {
			if words := strings.Split(strings.TrimSpace(line), "\t"); len(words) == 3 {
				all[words[0]] = append(all[words[0]], folder{words[1], words[2]})
			}
		}
	}
	root, err := exec.Command("go", "env", "GOROOT").Output()
	dir := string(bytes.TrimSpace(root))
	all[standard] = []folder{{dir, dir}}
	return all, err
}

// licensed adds the licence and the texts of a module, which are in the folders of its packages and those above.
func licensed(m module, folders []folder) (module, error) {
	m.texts = map[string]string{}
	for _, f := range folders {
		for dir := f.dir; ; dir = filepath.Dir(dir) {
			if err := addTexts(m.texts, f.module, dir); err != nil {
				return m, err
			}
			if dir == f.module || len(dir) < len(f.module) {
				break
			}
		}
	}
	found := map[string]bool{}
	for name, text := range m.texts {
		for _, match := range licensecheck.Scan([]byte(text)).Match {
			if !match.IsURL && isLicence(name) {
				found[match.ID] = true
			}
		}
	}
	if len(found) == 0 {
		return m, errors.New("no licence is known")
	}
	for id := range found {
		if !slices.Contains(allowed(), id) {
			return m, fmt.Errorf("the licence %s is none of %s", id, strings.Join(allowed(), ", "))
		}
	}
	m.licence = strings.Join(slices.Sorted(maps.Keys(found)), " AND ")
	return m, nil
}

// allowed returns the licences that code in the programs may have, as SPDX names them.
func allowed() []string { return []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT"} }

func isLicence(name string) bool {
	return regexp.MustCompile(`(?i)^(licen[cs]e|copying)`).MatchString(filepath.Base(name))
}

// addTexts adds the licences and notices in a folder.
func addTexts(texts map[string]string, root, dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.IsDir() || !isLicence(entry.Name()) && !strings.HasPrefix(strings.ToUpper(entry.Name()), "NOTICE") {
			continue
		}
		name, err := filepath.Rel(root, filepath.Join(dir, entry.Name()))
		if err != nil {
			return err
		}
		if strings.HasSuffix(name, ".go") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			return err
		}
		texts[name] = string(text)
	}
	return nil
}

// thirdParty returns the licences of all modules. A text that several modules have stands there once.
func thirdParty(modules []module) []byte {
	users := map[string][]string{}
	for _, m := range modules {
		for name, text := range m.texts {
			users[text] = append(users[text], fmt.Sprintf("%s %s (%s)", m.path, m.version, name))
		}
	}
	texts := slices.Collect(maps.Keys(users))
	for _, list := range users {
		slices.Sort(list)
	}
	slices.SortFunc(texts, func(a, b string) int { return cmp.Compare(users[a][0], users[b][0]) })
	var out bytes.Buffer
	out.WriteString("Sluice has code of these modules, under the licences that follow their names.\n")
	for _, text := range texts {
		fmt.Fprintf(&out, "\n%s\n%s\n%s\n", strings.Repeat("=", 80), strings.Join(users[text], "\n"), strings.Repeat("=", 80))
		out.WriteString("\n" + strings.TrimSpace(text) + "\n")
	}
	return out.Bytes()
}
