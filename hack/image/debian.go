package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"debug/elf"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
)

//go:embed debian.txt
var debianPackages string

// debianFiles returns the files of Debian in the image for mode iptables, from the packages in a folder: the programs
// of iptables, their libraries, the copyrights, and for scanners the packages' control data.
func debianFiles(dir, arch string) ([]file, error) {
	all := map[string]file{}
	for line := range strings.Lines(debianPackages) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		name = path.Base(name)
		if !strings.HasSuffix(name, "_"+arch+".deb") && !strings.HasSuffix(name, "_all.deb") {
			continue
		}
		if err := readPackage(all, filepath.Join(dir, name), sum); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return choose(all)
}

// readPackage adds the files of a Debian package, whose SHA-256 must be sum.
func readPackage(all map[string]file, name, sum string) error {
	content, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	if got := fmt.Sprintf("%x", sha256.Sum256(content)); got != sum {
		return fmt.Errorf("its SHA-256 is %s, want %s: remove it, so that it is downloaded again", got, sum)
	}
	control, err := output("dpkg-deb", "--field", name)
	if err != nil {
		return err
	}
	first, _, _ := strings.Cut(string(control), "\n")
	status := path.Join("var/lib/dpkg/status.d", strings.TrimPrefix(first, "Package: "))
	all[status] = file{path: status, mode: 0o644, content: control}
	files, err := output("dpkg-deb", "--fsys-tarfile", name)
	if err != nil {
		return err
	}
	return readTar(all, files)
}

// output runs a program and returns its output.
func output(program string, args ...string) ([]byte, error) {
	out, err := exec.Command(program, args...).Output() //nolint:gosec // of this package
	if failed, is := errors.AsType[*exec.ExitError](err); is {
		return nil, fmt.Errorf("%s: %w: %s", program, err, bytes.TrimSpace(failed.Stderr))
	}
	return out, err
}

// readTar adds the regular files and symbolic links of a tar archive.
func readTar(all map[string]file, content []byte) error {
	for r := tar.NewReader(bytes.NewReader(content)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		f := file{path: path.Clean(h.Name), mode: h.Mode}
		switch h.Typeflag {
		case tar.TypeReg:
			if f.content, err = io.ReadAll(r); err != nil {
				return err
			}
		case tar.TypeSymlink:
			f.link = h.Linkname
		default:
			continue
		}
		all[f.path] = f
	}
}

// choose returns the files that the image needs, of all files of the packages.
func choose(all map[string]file) ([]file, error) {
	libraries := map[string]string{} // their paths, by name
	for name := range all {
		if dir := path.Base(path.Dir(path.Dir(name))); dir == "lib" { // .../lib/x86_64-linux-gnu/libc.so.6
			libraries[path.Base(name)] = name
		}
	}
	chosen := map[string]bool{}
	var files []file
	var add func(name string) error
	add = func(name string) error {
		f, exists := all[name]
		if !exists {
			return fmt.Errorf("no package has /%s", name)
		}
		if chosen[name] {
			return nil
		}
		chosen[name] = true
		files = append(files, f)
		needed, err := f.needs(libraries)
		for _, n := range needed {
			err = errors.Join(err, add(n))
		}
		return err
	}
	for _, pattern := range []string{
		"usr/sbin/xtables-*-multi", "usr/sbin/ip*tables-nft*", "usr/sbin/ip*tables-legacy*", "usr/lib/*/xtables/lib[ix]*.so",
		"etc/protocols", "usr/share/doc/*/copyright", "var/lib/dpkg/status.d/*",
	} {
		found := false
		for name := range all {
			if matches, _ := path.Match(pattern, name); matches { // the patterns are valid
				found = true
				if err := add(name); err != nil {
					return nil, fmt.Errorf("/%s: %w", name, err)
				}
			}
		}
		if !found {
			return nil, fmt.Errorf("no package has /%s", pattern)
		}
	}
	return files, nil
}

// needs returns the paths of the files that a file needs: the target of a link; the loader and the libraries of a
// program.
func (f file) needs(libraries map[string]string) (paths []string, err error) {
	if f.link != "" {
		if path.IsAbs(f.link) {
			return []string{f.link[1:]}, nil
		}
		return []string{path.Join(path.Dir(f.path), f.link)}, nil
	}
	program, err := elf.NewFile(bytes.NewReader(f.content))
	if err != nil {
		return nil, nil //nolint:nilerr // it is no program
	}
	names, err := program.ImportedLibraries()
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if libraries[name] == "" {
			return nil, fmt.Errorf("no package has the library %s", name)
		}
		paths = append(paths, libraries[name])
	}
	if s := program.Section(".interp"); s != nil {
		loader, err := s.Data()
		if err != nil {
			return nil, err
		}
		paths = append(paths, strings.Trim(string(loader), "/\x00"))
	}
	return paths, nil
}
