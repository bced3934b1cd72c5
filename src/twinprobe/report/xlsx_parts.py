"""The small fixed parts of a workbook: what it contains, its styles, the frame around each sheet's rows."""

from __future__ import annotations

from xml.sax.saxutils import escape, quoteattr

_HEAD = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
_MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_LINKS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_KIND = "application/vnd.openxmlformats-officedocument.spreadsheetml"

# Cell styles by number: plain, warning, error; the same for texts that look like a formula; the header.
PLAIN, WARNING, ERROR, AS_TEXT, HEADER = 0, 1, 2, 3, 6
_YELLOW, _RED, _GREY = "FFFFEB9C", "FFFFC7CE", "FFE7EBF0"


def column_letters(index: int) -> str:
    """Column 0 is A, 26 is AA."""
    letters = ""
    index += 1
    while index:
        index, rest = divmod(index - 1, 26)
        letters = chr(ord("A") + rest) + letters
    return letters


def fixed_parts(sheets: list[str], areas: list[str]) -> dict[str, str]:
    """Every part but the sheets and the shared texts, by its path in the file."""
    numbered = list(enumerate(sheets, 1))
    overrides = "".join(
        f'<Override PartName="/xl/worksheets/sheet{i}.xml" ContentType="{_KIND}.worksheet+xml"/>' for i, _ in numbered
    )
    links = "".join(
        f'<Relationship Id="rId{i}" Type="{_LINKS}/worksheet" Target="worksheets/sheet{i}.xml"/>' for i, _ in numbered
    )
    listed = "".join(f'<sheet name={quoteattr(name)} sheetId="{i}" r:id="rId{i}"/>' for i, name in numbered)
    filters = "".join(
        f'<definedName name="_xlnm._FilterDatabase" localSheetId="{i}" hidden="1">\'{name}\'!{area}</definedName>'
        for i, (name, area) in enumerate(zip(sheets, areas, strict=True))
    )
    return {
        "[Content_Types].xml": f'{_HEAD}<Types xmlns="{_PACKAGE}/content-types">'
        '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        f'<Override PartName="/xl/workbook.xml" ContentType="{_KIND}.sheet.main+xml"/>{overrides}'
        f'<Override PartName="/xl/styles.xml" ContentType="{_KIND}.styles+xml"/>'
        f'<Override PartName="/xl/sharedStrings.xml" ContentType="{_KIND}.sharedStrings+xml"/></Types>',
        "_rels/.rels": f'{_HEAD}<Relationships xmlns="{_PACKAGE}/relationships">'
        f'<Relationship Id="rId1" Type="{_LINKS}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
        "xl/workbook.xml": f'{_HEAD}<workbook xmlns="{_MAIN}" xmlns:r="{_LINKS}"><sheets>{listed}</sheets>'
        f"<definedNames>{filters}</definedNames></workbook>",
        "xl/_rels/workbook.xml.rels": f'{_HEAD}<Relationships xmlns="{_PACKAGE}/relationships">{links}'
        f'<Relationship Id="rId{len(sheets) + 1}" Type="{_LINKS}/styles" Target="styles.xml"/>'
        f'<Relationship Id="rId{len(sheets) + 2}" Type="{_LINKS}/sharedStrings" Target="sharedStrings.xml"/>'
        "</Relationships>",
        "xl/styles.xml": _styles(),
    }


def _styles() -> str:
    fills = "".join(
        f'<fill><patternFill patternType="solid"><fgColor rgb="{colour}"/><bgColor indexed="64"/></patternFill></fill>'
        for colour in (_YELLOW, _RED, _GREY)
    )
    plain = "".join(
        f'<xf numFmtId="0" fontId="0" fillId="{fill}" borderId="0" xfId="0" applyFill="1"{quote}/>'
        for quote in ("", ' quotePrefix="1"')
        for fill in (0, 2, 3)
    )
    header = (
        '<xf numFmtId="0" fontId="1" fillId="4" borderId="1" xfId="0" applyFont="1" applyFill="1" applyBorder="1"/>'
    )
    reserved = '<fill><patternFill patternType="none"/></fill><fill><patternFill patternType="gray125"/></fill>'
    font = '<sz val="11"/><name val="Calibri"/><family val="2"/>'
    return (
        f'{_HEAD}<styleSheet xmlns="{_MAIN}"><fonts count="2"><font>{font}</font><font><b/>{font}</font></fonts>'
        f'<fills count="5">{reserved}{fills}</fills>'
        '<borders count="2"><border><left/><right/><top/><bottom/><diagonal/></border><border><left/>'
        '<right/><top/><bottom style="thin"><color rgb="FF8A94A3"/></bottom><diagonal/></border></borders>'
        '<cellStyleXfs count="1"><xf numFmtId="0" fontId="0" fillId="0" borderId="0"/></cellStyleXfs>'
        f'<cellXfs count="{HEADER + 1}">{plain}{header}</cellXfs>'
        '<cellStyles count="1"><cellStyle name="Normal" xfId="0" builtinId="0"/></cellStyles></styleSheet>'
    )


def sheet_start(area: str, widths: list[int], titles: list[str]) -> str:
    """All of a sheet before its first data row: frozen header, column widths, the header itself."""
    columns = "".join(
        f'<col min="{i}" max="{i}" width="{width}" customWidth="1"/>' for i, width in enumerate(widths, 1)
    )
    header = "".join(
        f'<c r="{column_letters(i)}1" s="{HEADER}" t="inlineStr"><is><t>{escape(title)}</t></is></c>'
        for i, title in enumerate(titles)
    )
    return (
        f'{_HEAD}<worksheet xmlns="{_MAIN}"><dimension ref="{area}"/><sheetViews><sheetView workbookViewId="0">'
        '<pane ySplit="1" topLeftCell="A2" activePane="bottomLeft" state="frozen"/>'
        '<selection pane="bottomLeft" activeCell="A2" sqref="A2"/></sheetView></sheetViews>'
        f'<sheetFormatPr defaultRowHeight="15"/><cols>{columns}</cols><sheetData><row r="1">{header}</row>'
    )


def sheet_end(area: str) -> str:
    """All of a sheet after its last row: the filters, and no green corners on numbers kept as text."""
    return (
        f'</sheetData><autoFilter ref="{area}"/>'
        f'<ignoredErrors><ignoredError sqref="{area}" numberStoredAsText="1"/></ignoredErrors></worksheet>'
    )


def texts_start(count: int) -> str:
    """The head of the table of shared texts."""
    return f'{_HEAD}<sst xmlns="{_MAIN}" uniqueCount="{count}">'


TEXTS_END = "</sst>"
