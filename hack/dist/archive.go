package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

type file struct {
	path    string
	mode    fs.FileMode
	content []byte
}

// addPrograms adds an archive for each system.
func addPrograms(o options, made map[string][]byte, programs map[string]string) error {
	for system, name := range programs {
		content, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		goos, arch, _ := strings.Cut(system, "-")
		top, program := fmt.Sprintf("sluice_%s_%s_%s", o.version, goos, arch), "sluice"+filepath.Ext(name)
		files := []file{
			{path.Join(top, program), 0o755, content},
			{path.Join(top, "THIRD_PARTY_LICENSES"), 0o644, made["THIRD_PARTY_LICENSES"]},
		}
		for _, name := range []string{"LICENSE", "README.md", "CHANGELOG.md"} {
			content, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			files = append(files, file{path.Join(top, name), 0o644, content})
		}
		pack, extension := tarGz, ".tar.gz"
		if goos == "windows" {
			pack, extension = zipped, ".zip"
		}
		if made[top+extension], err = pack(files, o.created); err != nil {
			return err
		}
	}
	return nil
}

// named matches names of images with the version of Sluice in deploy/.
var named = regexp.MustCompile(`(ghcr\.io/sluice-proxy/sluice(?:-windows)?:)` +
	`v[0-9A-Za-z.+]+(?:-(?:alpha|beta|rc)\.[0-9]+)?`)

// tag returns the version as a tag of images, which has no plus sign.
func (o options) tag() string { return strings.ReplaceAll(o.version, "+", "_") }

// withVersion replaces the version in references of images.
func withVersion(o options, text []byte) []byte {
	return named.ReplaceAll(text, []byte("${1}"+o.tag()))
}

// addChart adds the Helm chart, as helm package does.
func addChart(o options, made map[string][]byte) error {
	files, err := filesIn("deploy/helm/sluice", "sluice")
	if err != nil {
		return err
	}
	version := strings.TrimPrefix(o.version, "v")
	for i, f := range files {
		if f.path == "sluice/Chart.yaml" {
			text := regexp.MustCompile(`(?m)^version: .*$`).ReplaceAll(f.content, []byte("version: "+version))
			files[i].content = regexp.MustCompile(`(?m)^appVersion: .*$`).ReplaceAll(text, []byte("appVersion: "+o.tag()))
		}
	}
	made["sluice-"+version+".tgz"], err = tarGz(files, o.created)
	return err
}

// addManifests adds an archive of the other files of deploy/, with the images of this version.
func addManifests(o options, made map[string][]byte) error {
	name := "sluice_" + o.version + "_manifests"
	var all []file
	for dir, as := range map[string]string{
		"kubernetes": "kubernetes", "static-pod": "static-pod", "systemd": "systemd", "helm/sluice/files": "monitoring",
	} {
		files, err := filesIn(filepath.Join("deploy", dir), path.Join(name, as))
		if err != nil {
			return err
		}
		all = append(all, files...)
	}
	for i := range all {
		all[i].content = withVersion(o, all[i].content)
	}
	content, err := tarGz(all, o.created)
	made[name+".tar.gz"] = content
	return err
}

// filesIn returns the files below a folder, as below another one.
func filesIn(dir, as string) (files []file, err error) {
	err = fs.WalkDir(os.DirFS(dir), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(filepath.Join(dir, name))
		files = append(files, file{path.Join(as, name), 0o644, content})
		return err
	})
	return files, err
}

func tarGz(files []file, at time.Time) ([]byte, error) {
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	w := tar.NewWriter(zip)
	for _, f := range sorted(files) {
		h := &tar.Header{
			Typeflag: tar.TypeReg, Name: f.path, Mode: int64(f.mode), Size: int64(len(f.content)),
			ModTime: at, Format: tar.FormatPAX,
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, err
		}
	}
	err := errors.Join(w.Close(), zip.Close())
	return out.Bytes(), err
}

func zipped(files []file, at time.Time) ([]byte, error) {
	var out bytes.Buffer
	w := zip.NewWriter(&out)
	for _, f := range sorted(files) {
		h := &zip.FileHeader{Name: f.path, Method: zip.Deflate, Modified: at}
		h.SetMode(f.mode)
		entry, err := w.CreateHeader(h)
		if err != nil {
			return nil, err
		}
		if _, err := entry.Write(f.content); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return out.Bytes(), err
}

func sorted(files []file) []file {
	return slices.SortedFunc(slices.Values(files), func(a, b file) int { return strings.Compare(a.path, b.path) })
}

// writeSums writes the checksums of all files in the folder of a release, as sha256sum does. The index of an image
// layout has the checksums of its other files.
func writeSums(dir string) error {
	var out strings.Builder
	for _, pattern := range []string{"*", "image*/index.json"} {
		paths, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return err
		}
		for _, name := range paths {
			if info, err := os.Stat(name); err != nil || info.IsDir() || filepath.Base(name) == "SHA256SUMS" {
				continue
			}
			content, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			short, err := filepath.Rel(dir, name)
			if err != nil {
				return err
			}
			fmt.Fprintf(&out, "%x  %s\n", sha256.Sum256(content), short)
		}
	}
	return os.WriteFile(filepath.Join(dir, "SHA256SUMS"), []byte(out.String()), 0o644) //nolint:gosec // for everybody
}
