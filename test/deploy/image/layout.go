//go:build linux

package image

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
)

// Packages downloads the Debian packages of the image for mode iptables, and returns the folder that hack/image wants.
// make image has the same folder.
func Packages(ctx context.Context) (string, error) {
	caches, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(caches, "sluice-build", "debian")
	return dir, command(ctx, "hack/image/debian.sh", runtime.GOARCH, filepath.Join(dir, runtime.GOARCH))
}

// Build writes an image with a program as an image layout into a new folder, and returns it. It passes the flags to
// hack/image.
func Build(ctx context.Context, out, program string, flags ...string) (v1.Image, error) {
	args := append([]string{"run", "-trimpath", "./hack/image", "-version", "v9.8.7", "-out", out}, flags...)
	if err := command(ctx, "go", append(args, "linux/"+runtime.GOARCH+"="+program)...); err != nil {
		return nil, err
	}
	return imageIn(out)
}

// Files writes an image with a program into a working folder, and returns a folder with the files of the image. It
// passes the flags to hack/image.
func Files(ctx context.Context, work, program string, flags ...string) (string, error) {
	files := filepath.Join(work, "files")
	image, err := Build(ctx, filepath.Join(work, "layout"), program, flags...)
	if err != nil {
		return "", err
	}
	content := mutate.Extract(image)
	defer func() { _ = content.Close() }() // it was only read from
	untar := exec.CommandContext(ctx, "tar", "-x", "-C", files)
	untar.Stdin = content
	if err := os.Mkdir(files, 0o755); err != nil {
		return "", err
	}
	if text, err := untar.CombinedOutput(); err != nil {
		return "", fmt.Errorf("extract the image: %w\n%s", err, text)
	}
	return files, nil
}

// command runs a command in the folder of this project.
func command(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = projectPath(), append(os.Environ(), "SOURCE_DATE_EPOCH=0", "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", cmd, err, text)
	}
	return nil
}

// imageIn returns the image in an image layout, whose index has an index of platforms.
func imageIn(dir string) (v1.Image, error) {
	top, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return nil, err
	}
	platforms, err := partial.FindIndexes(top, func(v1.Descriptor) bool { return true })
	if err != nil || len(platforms) != 1 {
		return nil, fmt.Errorf("%d indexes in %s, want one: %w", len(platforms), dir, err)
	}
	images, err := partial.FindImages(platforms[0], func(v1.Descriptor) bool { return true })
	if err != nil || len(images) != 1 {
		return nil, fmt.Errorf("%d images in %s, want one: %w", len(images), dir, err)
	}
	return images[0], nil
}
