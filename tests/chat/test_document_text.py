"""Files become text, and hostile ones a sentence."""

import io
import re
import zipfile
import zlib

import pytest

from halo_weave.chat import documents as reader
from halo_weave.chat.documents import document_name, document_text
from halo_weave.errors import DocumentRefused

W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'


def read(name: str, data: bytes, *, characters: int = 100_000, seconds: float = 60) -> str:
    return document_text(name, data, characters=characters, seconds=seconds)


def refusal(name: str, data: bytes, **more) -> str:
    with pytest.raises(DocumentRefused) as refused:
        read(name, data, **more)
    assert str(refused.value).startswith((name, "There is no text in"))
    return str(refused.value)


def docx(xml: str | bytes, part: str = "word/document.xml") -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(part, xml)
    return file.getvalue()


def paragraph(text: str, style: str = "") -> str:
    about = f'<w:pPr><w:pStyle w:val="{style}"/></w:pPr>' if style else ""
    return f"<w:p>{about}<w:r><w:t>{text}</w:t></w:r></w:p>"


def document(*paragraphs: str) -> bytes:
    return docx(f"<w:document {W}><w:body>{''.join(paragraphs)}</w:body></w:document>")


def pdf(
    pages: int = 1, content: bytes = b"BT /F 12 Tf 1 1 Td (The keeper is Ingrid.) Tj ET", form: bytes = b""
) -> bytes:
    """A small PDF, written by hand."""
    kids = b" ".join([b"3 0 R"] * pages)
    bodies = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[%s]/Count %d>>" % (kids, pages),
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]/Contents 4 0 R/Resources<</Font<</F 5 0 R>>>>>>",
        b"<<%s/Length %d>>stream\n%s\nendstream" % (form, len(content), content),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    file, places = b"%PDF-1.4\n", []
    for number, body in enumerate(bodies, 1):
        places.append(len(file))
        file += b"%d 0 obj%s endobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    trailer = b"trailer<</Root 1 0 R/Size 6>>\nstartxref\n%d\n%%%%EOF" % len(file)
    return file + b"xref\n0 6\n0000000000 65535 f \n" + table + trailer


@pytest.mark.parametrize("form", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le"])
def test_a_text_is_read_in_the_forms_of_unicode(form):
    mark = b"\xff\xfe" if form == "utf-16-le" else b""
    assert read("a.txt", mark + "Zoë\r\nsays\rhello\n".encode(form)) == "Zoë\nsays\nhello"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b" \n ", "is empty"),
        (bytes(range(256)) * 40, "not a text"),
        (b"\x7fELF" + b"\0\1\2" * 900, "not a text"),
        ("café au lait ".encode("latin-1") * 9, "not in UTF-8"),
        ("海鳴り".encode("shift-jis") * 9, "not in UTF-8"),
        (b"\xff\xfea", "not in UTF-8"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"x" * 99, "old version of Office"),
        (b"%PDF-1.4\n" + b"junk" * 99, "is damaged"),
        (b"PK\x03\x04" + b"junk" * 99, "is damaged"),
    ],
)
def test_what_is_no_text_is_refused(data, words):
    assert words in refusal("a.txt", data)


def test_more_text_than_may_be_attached_is_refused():
    assert "document_tokens" in refusal("a.txt", b"word " * 100, characters=100)
    assert "document_tokens" in refusal("a.docx", document(paragraph("word " * 100)), characters=100)
    assert "document_tokens" in refusal("a.pdf", pdf(200), characters=100)


def test_a_docx_is_read_with_its_headings_and_tables():
    row = f"<w:tr><w:tc>{paragraph('Ingrid')}</w:tc><w:tc>{paragraph('keeper')}</w:tc></w:tr>"
    file = document(paragraph("Log", "Heading1"), paragraph("Fog &amp; frost"), f"<w:tbl>{row}</w:tbl>")
    assert read("log.docx", file) == "# Log\n\nFog & frost\n\nIngrid \tkeeper \t"


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (docx("<a>" + "x" * (80 << 20)), "unpacks to more than 64 MB"),
        (docx('<!DOCTYPE a [<!ENTITY b "ha">]><a>&b;</a>'), "is damaged"),
        (docx("<a><b></a>"), "is damaged"),
        (docx("text", "other.xml"), "is a zip, but no DOCX"),
        (document(), "There is no text"),
        (document(paragraph("x"))[:-40], "is damaged"),
    ],
    ids=["bomb", "entities", "torn", "zip", "empty", "cut"],
)
def test_a_hostile_docx_is_refused(file, words):
    assert words in refusal("a.docx", file)


class TestPdf:
    pypdf = pytest.importorskip("pypdf")

    def test_a_pdf_is_read(self):
        assert read("log.pdf", pdf(2)) == "The keeper is Ingrid.\n\nThe keeper is Ingrid."

    def test_a_pdf_with_embedded_fonts_is_read(self, monkeypatch):
        plots = pytest.importorskip("matplotlib.figure")
        matplotlib = pytest.importorskip("matplotlib")
        monkeypatch.setitem(matplotlib.rcParams, "pdf.fonttype", 42)
        figure, file = plots.Figure(), io.BytesIO()
        figure.text(0.1, 0.5, "Ödön keeps the lamp — 42 €")
        figure.savefig(file, format="pdf")
        assert "Ödön keeps the lamp — 42 €" in read("log.pdf", file.getvalue())

    def test_a_protected_pdf_is_refused(self):
        writer, file = self.pypdf.PdfWriter(clone_from=io.BytesIO(pdf())), io.BytesIO()
        writer.encrypt("secret", algorithm="RC4-128")
        writer.write(file)
        assert "protected by a password" in refusal("a.pdf", file.getvalue())

    def test_a_pdf_of_pictures_is_refused(self):
        assert "There is no text" in refusal("a.pdf", pdf(1, b"q Q"))

    def test_a_pdf_whose_pages_lead_back_to_themselves_is_refused(self):
        refusal("a.pdf", pdf().replace(b"/Kids[3 0 R]", b"/Kids[2 0 R]"))

    def test_a_pdf_that_does_not_end_is_stopped(self):
        words = refusal("a.pdf", pdf(100_000), characters=10**9, seconds=2)
        assert re.search("took longer than 2 seconds|too much memory|was stopped", words)

    @pytest.mark.slow
    def test_a_pdf_that_unpacks_to_much_is_refused(self):
        content = zlib.compress(b"BT /F 12 Tf (x) Tj ET\n" * (20 << 20))
        refusal("a.pdf", pdf(1, content, b"/Filter/FlateDecode"), seconds=10)

    def test_without_the_library_a_sentence_says_how_to_get_it(self, monkeypatch):
        monkeypatch.setattr(reader, "find_spec", lambda name: None)
        assert "pip install 'halo-weave[documents]'" in refusal("a.pdf", pdf())


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("/home/ada/log.txt", "log.txt"),
        ("C:\\Users\\ada\\log.txt", "log.txt"),
        ("../../etc/passwd", "passwd"),
        ("a\nb\u202etxt.exe", "a b txt.exe"),
        ("  ", "file"),
        ("x" * 200 + ".txt", "x" * 99 + "…" + "x" * 16 + ".txt"),
    ],
)
def test_a_name_is_one_line_without_folders(given, name):
    assert document_name(given) == name
